"""Pictures of notebook 10: what stays, what is repeated, what it costs, and smaller caches."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat, readable, token_ticks

CACHED, REPEATED, WEIGHTS, CACHE = COLOURS["blue"], COLOURS["red"], COLOURS["blue"], COLOURS["orange"]
VARIANT_COLOURS = dict(
    zip(("MHA", "GQA", "MQA", "MLA"), (COLOURS[c] for c in ("blue", "green", "red", "purple")), strict=True)
)


def changed_keys(changes: dict, tokens) -> Figure:
    """How far one more token moves earlier keys, as shares of their length. changes: {title: (layers, T)}."""
    fig = new_figure(8.0, 0.9 + 1.15 * len(changes))
    axes = fig.subplots(len(changes), 1, sharex=True)
    limit = max(np.max(change) for change in changes.values())
    for ax, (title, change) in zip(axes, changes.items(), strict=True):
        heat(ax, change, title=title, limits=(0, limit), numbers=".1%")
        ax.set_yticks(range(len(change)), [f"layer {i}" for i in range(len(change))])
    token_ticks(axes[-1], tokens, "x")
    axes[-1].set_xlabel("token whose keys are compared")
    return fig


def squares(ax: Axes, cells, colour: str) -> None:
    """Unit squares at (column, row)."""
    for column, row in cells:
        ax.add_patch(Rectangle((column + 0.06, row + 0.06), 0.88, 0.88, color=colour, lw=0))


def passes(prompt: int, new: int, lengths, with_cache, without) -> Figure:
    """Which tokens every pass runs, without the cache and with it; and FLOPs of a whole generation, both ways."""
    fig = new_figure(8.0, 3.3)
    axes = fig.subplots(1, 3, width_ratios=(1.15, 1.15, 1))
    total = prompt + new
    grids = (("without the cache", lambda k: 0), ("with it", lambda k: 0 if k == 0 else prompt + k - 1))
    for ax, (title, first) in zip(axes, grids, strict=False):
        new_ones = [(i, k) for k in range(new + 1) for i in range(0 if k == 0 else prompt + k - 1, prompt + k)]
        again = [(i, k) for k in range(new + 1) for i in range(first(k), prompt + k) if (i, k) not in new_ones]
        squares(ax, new_ones, CACHED)
        squares(ax, again, REPEATED)
        ax.set(title=title, xlim=(0, total), ylim=(new + 1, 0), xlabel="token", aspect="equal",
               xticks=[0.5, prompt - 0.5, total - 0.5], xticklabels=["0", f"{prompt - 1}", f"{total - 1}"],
               yticks=[0.5, 1.5, new + 0.5], yticklabels=["prefill", "1", f"{new}"])  # fmt: skip
    axes[0].set_ylabel("pass")
    curve = axes[2]
    middle = len(lengths) // 2
    lines = (without, REPEATED, "without", (-6, 2), "right"), (with_cache, CACHED, "with it", (4, -14), "left")
    for work, colour, words, where, side in lines:
        curve.plot(lengths, np.divide(work, 1e12), color=colour)
        curve.annotate(words, (lengths[middle], work[middle] / 1e12), where, textcoords="offset points", ha=side,
                       color=colour, weight="bold")  # fmt: skip
    curve.set(xscale="log", yscale="log", title="Llama 2 7B", xlabel="tokens generated", ylabel="TFLOPs of all passes")
    return fig


def times(lengths, cached, recomputed, floor: float | None = None) -> Figure:
    """Milliseconds for one more token against the tokens before it, and their ratio; floor: the least possible."""
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2, width_ratios=(1.3, 1))
    left.plot(lengths, recomputed, "s-", color=REPEATED, label="recompute everything")
    left.plot(lengths, cached, "o-", color=CACHED, label="with the cache")
    if floor is not None:
        left.axhline(floor, color=COLOURS["black"], ls=(0, (4, 3)), lw=1.6, label="reading all weights once")
        left.set_ylim(floor / 2, 12 * max(recomputed))  # room for the legend
    left.set(ylabel="milliseconds per token", yscale="log", title="time for one more token")
    left.legend(loc="upper left")
    right.plot(lengths, np.divide(recomputed, cached), "o-", color=COLOURS["black"])
    right.axhline(1, color=COLOURS["grey"], ls=(0, (4, 4)), lw=1.2)
    right.set(yscale="log", title="times as fast with the cache", ylabel="ratio")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
        ax.set_xticks(lengths, [f"{n:,}" for n in lengths])
        ax.set_xlabel("tokens before it")
    highest, marks = right.get_ylim()[1], (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    shown = [n for k, n in enumerate(marks) if k == 0 or marks[k - 1] < highest]  # the last one at or above the curve
    right.set_yticks(shown, [f"{n}" for n in shown])
    return fig


def roofline(bandwidth: float, peak: float, points: dict, marks: dict) -> Figure:
    """What a machine can compute per second at each arithmetic intensity.

    bandwidth: bytes per second; peak: FLOPs per second; points: {rows: (FLOPs per byte, FLOPs per second)}, measured;
    marks: {words: FLOPs per byte}, drawn on the roof.
    """
    fig = new_figure(8.0, 3.9)
    ax = fig.subplots()
    x = np.geomspace(0.04, 9000, 300)
    ax.plot(x, np.minimum(bandwidth * x, peak) / 1e9, color=COLOURS["black"], lw=2.4)
    at, rates = np.array(list(points.values())).T
    ax.plot(at, rates / 1e9, "o", color=CACHED, ms=8, label="measured: matrix × n columns")
    for rows, (intensity, rate) in list(points.items())[:: max(1, len(points) // 4)]:
        ax.annotate(f"n = {rows}", (intensity, rate / 1e9), (8, -13), textcoords="offset points", color=CACHED)
    for words, intensity in marks.items():
        roof, slope = min(bandwidth * intensity, peak) / 1e9, bandwidth * intensity < peak
        ax.plot([intensity], [roof], "D", color=REPEATED, ms=9)
        style = {"xytext": (-9, 4) if slope else (0, 11), "ha": "right" if slope else "center"}
        ax.annotate(words, (intensity, roof), textcoords="offset points", color=REPEATED, weight="bold", **style)
    knee, top = peak / bandwidth, peak / 1e9 * 6
    ax.plot([knee, knee], [peak / 1e9, top], color=COLOURS["grey"], ls=(0, (4, 4)), lw=1.2,
            label=f"the roof begins: {knee:.0f} FLOPs per byte")  # fmt: skip
    for words, place, side in (("← memory is the limit", 0.01, "left"), ("arithmetic is the limit →", 0.99, "right")):
        ax.text(place, 0.95, words, color="#555555", ha=side, transform=ax.transAxes)
    ax.set(xscale="log", yscale="log", xlim=(0.04, 9000), ylim=(peak / 1e9 / 800, top))
    ax.set(xlabel="FLOPs per byte read", ylabel="GFLOP per second")
    ax.legend(loc="lower right")
    return fig


def bytes_of_a_step(batches, weights: int, cache: int, per_token: dict) -> Figure:
    """Left: GB read by one decode step of a batch. Right: the same per token made, for several contexts.

    weights: bytes of the weights; cache: of one sequence; per_token: {words: (bytes per token for each batch size)}.
    """
    fig = new_figure(8.0, 3.4)
    left, right = fig.subplots(1, 2)
    caches = np.multiply(batches, cache) / 1e9
    left.fill_between(batches, 0, weights / 1e9, color=WEIGHTS, lw=0, label="weights, once")
    left.fill_between(batches, weights / 1e9, weights / 1e9 + caches, color=CACHE, lw=0, label="caches, one each")
    left.set(
        title="read by one step, full contexts",
        xlabel="sequences in the batch",
        ylabel="GB",
        xlim=(1, batches[-1]),
        ylim=0,
    )
    left.legend(loc="upper left")
    for (words, sizes), colour in zip(per_token.items(), (COLOURS["green"], CACHE, REPEATED), strict=False):
        right.plot(batches, np.divide(sizes, 1e9), color=colour, label=words)
    right.set(title="read per token made", xlabel="sequences in the batch", ylabel="GB", xscale="log", yscale="log")
    right.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    right.minorticks_off()
    right.legend(loc="lower left")
    return fig


def sharing(heads: int, kv_heads: dict, sizes: dict) -> Figure:
    """Who shares what, and the measured bytes per token. kv_heads: {variant: key/value heads, 0 for a latent}."""
    fig = new_figure(8.0, 3.5)
    grid = fig.add_gridspec(2, len(kv_heads), height_ratios=(1.25, 1))
    for k, (name, n) in enumerate(kv_heads.items()):
        ax = fig.add_subplot(grid[0, k])
        share = max(n, 1)
        for i in range(heads):
            owner = (i * share // heads + 0.5) * heads / share
            ax.plot([i + 0.5, owner], [2.2, 1.1], color="#999999", lw=1, zorder=0)
            ax.add_patch(Rectangle((i + 0.12, 2.1), 0.76, 0.7, color=COLOURS["grey"], lw=0))
        for i in range(share):
            width = 0.76 if n > 1 else 1.2 if n else 3.4
            centre = (i + 0.5) * heads / share
            ax.add_patch(Rectangle((centre - width / 2, 0.5), width, 0.7, color=VARIANT_COLOURS[name], lw=0))
        ax.set(xlim=(0, heads), ylim=(0.2, 3), title=name)
        ax.set_axis_off()
        if k == 0:
            ax.text(-0.3, 2.45, "queries", ha="right", va="center")
            ax.text(-0.3, 0.85, "cached", ha="right", va="center")
    bars = fig.add_subplot(grid[1, :])
    names = list(sizes)
    bars.barh(names, list(sizes.values()), color=[VARIANT_COLOURS[name] for name in names], height=0.7)
    for k, size in enumerate(sizes.values()):
        bars.text(size, k, f" {size:,}", va="center")
    bars.set(
        xlabel="bytes of cache per token, measured", xlim=(0, 1.12 * max(sizes.values())), ylim=(len(names) - 0.5, -0.5)
    )
    return fig


def quality(live: dict, stored: list) -> Figure:
    """Left: training losses of the short runs, {variant: [(step, loss)]}. Right: stored results, or the live ones.

    stored: [(variant, bytes per token, mean loss, lowest, highest)] on fresh stories.
    """
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2)
    for name, curve in live.items():
        steps, losses = zip(*curve, strict=True)
        left.plot(steps, losses, color=VARIANT_COLOURS[name], label=name)
    left.set(title="trained here", xlabel="step", ylabel="loss (nats per token)")
    left.legend()
    for name, size, mean, low, high in stored:
        right.errorbar(
            [size], [mean], [[mean - low], [high - mean]], fmt="o", ms=8, capsize=5, color=VARIANT_COLOURS[name]
        )
        right.annotate(
            name,
            (size, high),
            (0, 6),
            textcoords="offset points",
            ha="center",
            color=VARIANT_COLOURS[name],
            weight="bold",
        )
    right.set(title="on fresh stories", xlabel="bytes of cache per token", ylabel="loss (nats per token)")
    sizes = sorted(row[1] for row in stored)
    right.set(xscale="log", xlim=(0.7 * sizes[0], 1.4 * sizes[-1]), xticks=sizes)
    right.set_xticklabels([f"{size:,}" for size in sizes], rotation=90)
    right.minorticks_off()
    low, high = min(row[3] for row in stored), max(row[4] for row in stored)
    middle, half = (low + high) / 2, max(0.9 * (high - low), 0.1)  # a small difference must look small
    right.set_ylim(middle - half, middle + half)
    return fig


def left_padding(keep, pieces, positions) -> Figure:
    """A batch as a grid: (B, T) which tokens are real, their words, and their positions."""
    rows, columns = keep.shape
    fig = new_figure(8.0, 0.75 + 0.62 * rows)
    ax = fig.subplots()
    for i in range(rows):
        for j in range(columns):
            real = bool(keep[i, j])
            ax.add_patch(Rectangle((j + 0.03, i + 0.05), 0.94, 0.9, color="#DCEBF7" if real else "#F0F0F0", lw=0))
            words = readable(pieces[i][j]) if real else "pad"
            ink = COLOURS["black"] if real else "#8A8A8A"
            ax.text(j + 0.5, i + 0.36, words, ha="center", va="center", color=ink, parse_math=False, size="small")
            if real:
                ax.text(j + 0.5, i + 0.75, f"{positions[i, j]}", ha="center", va="center", color=CACHED, size="small")
    ax.set(xlim=(0, columns), ylim=(rows, 0), xlabel="column of the batch (blue: position)",
           xticks=np.arange(columns) + 0.5, xticklabels=range(columns),
           yticks=np.arange(rows) + 0.5, yticklabels=[f"row {i}" for i in range(rows)])  # fmt: skip
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return fig
