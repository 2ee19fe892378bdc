"""Pictures of the mask: what may be seen, what a wrong mask lets through, and what a model makes of the leak."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS, SEQUENTIAL, new_figure
from transformer_lib.plots.tokens import heat, readable, token_ticks

SEEN, HIDDEN, TARGET = COLOURS["blue"], "#E4E4E4", "#FFE08A"
DEPTHS = ("#08306B", "#08519C", "#2171B5", "#4292C6", "#6BAED6", "#9ECAE1", "#C6DBEF")


def stairs(tokens) -> Figure:
    """One row per prediction: the tokens that are seen, the one that is asked for, and those that are hidden."""
    fig = new_figure(8.0, 3.5)
    ax = fig.subplots()
    t = len(tokens)
    for i in range(t - 1):
        for j, token in enumerate(tokens):
            fill = SEEN if j <= i else TARGET if j == i + 1 else HIDDEN
            ax.add_patch(matplotlib.patches.Rectangle((j + 0.03, i + 0.05), 0.94, 0.9, fc=fill, ec="none"))
            if j <= i + 1:
                ink = "white" if j <= i else COLOURS["black"]
                weight = "normal" if j <= i else "bold"
                ax.text(j + 0.5, i + 0.5, token, ha="center", va="center", color=ink, weight=weight, parse_math=False)
    ax.set(xlim=(0, t), ylim=(t - 1, 0), ylabel="prediction made at position", xlabel="position")
    ax.set_xticks(np.arange(t) + 0.5, range(t))
    ax.set_yticks(np.arange(t - 1) + 0.5, range(t - 1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


def ways_to_mask(panels: dict, tokens) -> Figure:
    """Maps of weights under several ways to mask, with the sum of each row. panels: {title: (T, T) weights}."""
    fig = new_figure(8.0, 4.6)
    axes = fig.subplots(2, -(-len(panels) // 2), sharex=True)
    for k, (ax, (title, weights)) in enumerate(zip(axes.flat, panels.items(), strict=True)):
        weights = np.asarray(weights)
        t = len(weights)
        heat(ax, weights, title=title, limits=(0, 1), numbers=".2f")
        for i, total in enumerate(weights.sum(axis=1)):
            fine = abs(total - 1) < 1e-6
            ax.text(t - 0.4, i, f"{total:.2f}", va="center", weight="bold", color=COLOURS["green" if fine else "red"])
        ax.text(t - 0.4, -0.72, "sum", va="center", color="#555555")
        steps = np.repeat(np.arange(t) + 0.5, 2)  # the edge of the future
        ax.plot(steps, [-0.5, *steps[:-1]], color=COLOURS["red"], lw=2)
        token_ticks(ax, tokens, "x")
        token_ticks(ax, tokens, "y")
        ax.set_xlim(-0.5, t + 0.25)
        ax.set(ylabel="query" if k % 2 == 0 else "", xlabel="key" if k >= len(panels) - 2 else "")
    return fig


def yes_no(ax: Axes, mask, title: str, xlabel="key", ylabel="query") -> None:
    """A mask as coloured squares: blue = the pair stays."""
    mask = np.asarray(mask, dtype=float)
    ax.imshow(mask, cmap=ListedColormap([HIDDEN, SEEN]), vmin=0, vmax=1, aspect="equal")
    squares(ax, mask.shape)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)


def squares(ax: Axes, shape) -> None:
    rows, columns = shape
    ax.set_xticks(np.arange(columns), range(columns))
    ax.set_yticks(np.arange(rows), range(rows))
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", lw=1.5)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)


def reach(mask, needed, gradients, layers: int) -> Figure:
    """The mask, the layers until one position has heard of another, and what gradients in a real model say.

    needed: (T, T), more than `layers` = never; gradients: (T, T), how strongly output i depends on input j.
    """
    fig = new_figure(8.0, 3.3)
    axes = fig.subplots(1, 3)
    yes_no(axes[0], mask, "the mask of each layer")
    needed = np.asarray(needed)
    shown = np.where(needed <= layers, needed, np.nan)
    cmap = ListedColormap(DEPTHS[: layers + 1]).with_extremes(bad=HIDDEN)
    axes[1].imshow(shown, cmap=cmap, vmin=-0.5, vmax=layers + 0.5, aspect="equal")
    squares(axes[1], shown.shape)
    axes[1].set(title="layers to hear of it", xlabel="input")
    for i, j in zip(*np.nonzero(needed <= layers), strict=True):
        axes[1].text(j, i, needed[i, j], ha="center", va="center", color="white", size="small")
    sizes = np.log10(np.where(np.asarray(gradients) > 0, gradients, np.nan))
    low, high = np.nanmin(sizes), np.nanmax(sizes)
    axes[2].imshow(
        sizes, cmap=matplotlib.colormaps[SEQUENTIAL].with_extremes(bad=HIDDEN), vmin=low, vmax=high, aspect="equal"
    )
    squares(axes[2], sizes.shape)
    axes[2].set(title=f"gradient, {layers} layers (log)", xlabel="input")
    for ax in axes:
        ax.set_xticks(range(0, len(needed), 2))
        ax.set_yticks(range(0, len(needed), 2))
    return fig


def who_notices(tokens, changed: int, moved: dict) -> Figure:
    """How much the logits at each position move when one token changes. moved: {way: (T,)}; an exact 0 is written."""
    fig = new_figure(8.0, 4.2)
    axes = fig.subplots(len(moved), 1, sharex=True)
    for ax, (way, values) in zip(axes, moved.items(), strict=True):
        values = np.asarray(values)
        colours = [COLOURS["blue"] if i >= changed else COLOURS["red"] for i in range(len(values))]
        ax.bar(range(len(values)), values, color=colours, width=0.7)
        for i in np.flatnonzero(values == 0):
            ax.text(i, 1.5e-3, "0", ha="center", weight="bold", color=COLOURS["green"])
        ax.axvspan(changed - 0.5, changed + 0.5, color=TARGET, alpha=0.6, lw=0, zorder=0)
        ax.set(title=way, yscale="log", ylim=(1e-3, 200), xlim=(-0.5, len(values) - 0.5))
        ax.set_yticks([1e-3, 0.1, 10], ["0.001", "0.1", "10"])
        ax.minorticks_off()
    upright = 90 if sum(len(readable(token)) for token in tokens) > 70 else 0
    axes[-1].set_xticks(range(len(tokens)), [readable(token) for token in tokens], rotation=upright, parse_math=False)
    axes[len(axes) // 2].set_ylabel("largest change of a logit")
    return fig


def wall(factors, moved: dict, losses: dict, floor: float) -> Figure:
    """Left: what a changed last token does to earlier logits, against the size of all scores. Right: training losses.

    moved: {mask: (F,)}; losses: {mask: (N,)} on tokens without any pattern, whose loss cannot honestly be below floor.
    """
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2)
    styles = {"−∞": (COLOURS["blue"], "o"), "−1e4": (COLOURS["red"], "s")}
    for name, values in moved.items():
        colour, marker = styles[name]
        left.plot(factors, values, marker + "-", color=colour, ms=5, label=name)
    left.set(xscale="log", xlabel="all scores ×", ylabel="change of an earlier logit",
             title="another last token")  # fmt: skip
    left.legend(loc="upper left", title="mask")
    left.minorticks_off()
    for name, values in losses.items():
        width = 10
        smooth = np.asarray(values)[: len(values) // width * width].reshape(-1, width).mean(axis=1)
        right.plot(width * (np.arange(len(smooth)) + 1), smooth, color=styles[name][0], label=name)
    right.axhline(floor, color=COLOURS["black"], ls=(0, (4, 4)), lw=1.2)
    right.text(len(values), floor + 0.02, "least possible loss, ln 16", ha="right", va="bottom")
    right.set(xlabel="step", ylabel="loss (nats per token)", ylim=(floor - 0.3, floor + 0.2),
              title="train with large scores")  # fmt: skip
    return fig


def with_and_without(losses: dict, fresh: dict, floor: float) -> Figure:
    """Training loss with and without the mask, and the loss on fresh stories with the future in sight and hidden.

    losses: {"causal mask" | "mask left off": (N,)}; fresh: {the same: (as trained, with the future hidden)}.
    """
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2, width_ratios=(1.3, 1))
    colours = {"causal mask": COLOURS["blue"], "mask left off": COLOURS["red"]}
    for name, values in losses.items():
        left.plot(np.arange(len(values)) + 1, values, color=colours[name], label=name, lw=1.6)
    left.axhline(floor, color=COLOURS["black"], ls=(0, (4, 4)), lw=1.2)
    left.text(2, floor + 0.08, "the stories' entropy", va="bottom")
    left.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, 7.5), title="while training")
    left.legend(loc="upper right")
    for k, (name, pair) in enumerate(fresh.items()):
        for x, value, hatch in zip((k - 0.2, k + 0.2), pair, ("", "///"), strict=True):
            right.bar(x, value, width=0.36, color=colours[name], hatch=hatch, edgecolor="white")
            right.text(x, max(value, floor) + 0.08, f"{value:.2f}", ha="center", va="bottom", weight="bold")
    right.axhline(floor, color=COLOURS["black"], ls=(0, (4, 4)), lw=1.2)
    right.set_xticks(range(len(fresh)), list(fresh))
    right.set(title="fresh stories: plain = as trained,\nhatched = future hidden", ylim=(0, 8.5))
    return fig


def four_masks(panels: dict) -> Figure:
    """Masks side by side. panels: {title: (T_q, T_k) bool}; "✗" at the start of a title marks a wrong one."""
    fig = new_figure(8.0, 2.5)
    for ax, (title, mask) in zip(fig.subplots(1, len(panels)), panels.items(), strict=True):
        yes_no(ax, mask, title, ylabel="")
        t_q, t_k = np.shape(mask)
        ax.set_yticks(range(t_q), range(t_k - t_q, t_k))  # the queries are the last positions
        ax.set_anchor("N")
        if title.startswith("✗"):
            ax.title.set_color(COLOURS["red"])
    fig.axes[0].set_ylabel("query")
    return fig


def blanks(text: str, chances: dict, results: dict) -> Figure:
    """Fill-in-the-blank: each letter hidden in turn, and the share of right answers on fresh stories.

    chances: {what is seen: (len(text),) probability of the right letter}; results: {what is seen: share right}.
    """
    fig = new_figure(8.0, 3.0)
    left, right = fig.subplots(1, 2, width_ratios=(3.1, 1))
    rows = np.stack([np.asarray(values) for values in chances.values()])
    drawn = heat(left, rows, limits=(0, 1), numbers=False, title="chance given to the letter that was hidden")
    left.set_yticks(range(len(chances)), list(chances))
    left.set_xticks(range(len(text)), [letter.replace(" ", "·") for letter in text], parse_math=False)
    fig.colorbar(drawn.image, ax=left, label="probability", orientation="horizontal", aspect=40, pad=0.02)
    right.barh(range(len(results)), list(results.values()), color=[COLOURS["blue"], COLOURS["sky"], COLOURS["sky"]])
    for y, value in enumerate(results.values()):
        right.text(value + 0.01, y, f"{value:.0%}", va="center", weight="bold")
    right.set_yticks(range(len(results)), [])
    right.set(ylim=(len(results) - 0.5, -0.5), xlim=(0, 0.8), title="right on fresh text", xlabel="share")
    return fig
