"""Pictures of the division by √d_k: how far scores spread, what the softmax does with them, what gradient is left."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat

DIVIDED, UNDIVIDED, TOO_SOFT = COLOURS["blue"], COLOURS["red"], COLOURS["green"]
WORDS = {True: "÷ √d_k", False: "not divided"}
WIDTH_AXIS = "d_k: width of query and key"


def colour_of(divided: bool) -> str:
    return DIVIDED if divided else UNDIVIDED


def normal(x, deviation: float) -> np.ndarray:
    """The density of the normal distribution with mean 0."""
    return np.exp(-0.5 * (np.asarray(x) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def width_axis(ax: Axes, widths) -> None:
    """A logarithmic axis of d_k, labelled at every second power of two."""
    ax.set_xscale("log", base=2)
    ax.minorticks_off()
    ax.set_xticks(widths[::2], [f"{w:,}" for w in widths[::2]])
    ax.set_xlabel(WIDTH_AXIS)


def spread(samples: dict, variances: dict) -> Figure:
    """Left: histograms of scores, {d_k: scores}, with the theory. Right: measured variances, {d_k: variance}."""
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
    edges = np.linspace(-30, 30, 121)
    for (width, scores), colour in zip(samples.items(), (COLOURS["green"], DIVIDED, UNDIVIDED), strict=False):
        left.stairs(np.histogram(scores, edges, density=True)[0], edges, fill=True, color=colour, alpha=0.35)
        left.plot(edges, normal(edges, math.sqrt(width)), color=colour, lw=1.6)
        shown = math.sqrt(width)
        left.annotate(f"d_k = {width}", (0.75 * shown, normal(0.75 * shown, shown)), (8, 3),
                      textcoords="offset points", color=colour, weight="bold")  # fmt: skip
    left.set(xlabel="score q · k", ylabel="density", title="scores (lines: theory)", xlim=(-30, 30))
    widths = list(variances)
    right.plot(widths, widths, color=COLOURS["grey"], label="theory: variance = d_k")
    right.plot(widths, list(variances.values()), "o", color=UNDIVIDED, ms=7, label="measured")
    right.set_yscale("log", base=2)
    right.minorticks_off()
    right.set_yticks(widths[::2], [f"{w:,}" for w in widths[::2]])
    width_axis(right, widths)
    right.set(ylabel="variance of the scores", title="variance")
    right.legend(loc="upper left")
    return fig


def one_draw(raw, divided) -> Figure:
    """The weights of one query over its keys, from the raw scores and from the divided ones."""
    fig = new_figure(8.0, 2.9)
    axes = fig.subplots(1, 2, sharey=True)
    for ax, weights, scaled in zip(axes, (raw, divided), (False, True), strict=True):
        ax.bar(range(len(weights)), weights, color=colour_of(scaled))
        ax.set(title=WORDS[scaled], xlabel="key", xticks=range(0, len(weights), 3), ylim=(0, 1.05))
    axes[0].set_ylabel("weight")
    return fig


def jacobians(raw, divided) -> Figure:
    """Two Jacobians of the softmax, (n, n) each, in the same colours."""
    fig = new_figure(8.0, 3.4)
    axes = fig.subplots(1, 2, sharey=True)
    limit = max(np.abs(raw).max(), np.abs(divided).max())
    for ax, matrix, scaled in zip(axes, (raw, divided), (False, True), strict=True):
        drawn = heat(ax, matrix, title=WORDS[scaled], xlabel="score j", limits=(-limit, limit), diverging=True,
                     numbers=False)  # fmt: skip
        ax.set(aspect="equal", xticks=range(0, len(matrix), 5), yticks=range(0, len(matrix), 5))
    axes[0].set_ylabel("weight i")
    fig.colorbar(drawn.image, ax=axes, label="∂a_i / ∂s_j", pad=0.02)
    return fig


def against_width(widths, measures: dict, largest_entropy: float) -> Figure:
    """Entropy, largest weight and Jacobian norm against d_k. measures: {divided: {quantity: one number per width}}."""
    fig = new_figure(8.0, 3.0)
    axes = fig.subplots(1, 3)
    parts = (("entropy", "bits", largest_entropy), ("largest weight", "", 1.0), ("Jacobian's norm", "", 0.5))
    for ax, (name, unit, top) in zip(axes, parts, strict=True):
        for scaled, values in measures.items():
            marker = "o" if scaled else "s"
            ax.plot(widths, values[name], marker, ls="-", color=colour_of(scaled), ms=5, label=WORDS[scaled])
        width_axis(ax, widths)
        ax.set_xticks([1, 16, 256], ["1", "16", "256"])
        ax.set(title=name + (f" ({unit})" if unit else ""), ylim=(0, top * 1.06), xlabel="d_k")
    axes[0].axhline(largest_entropy, color=COLOURS["grey"], ls=(0, (4, 4)), lw=1)
    axes[1].legend(loc="center right", bbox_to_anchor=(1.05, 0.5), borderaxespad=0.1, handlelength=1.2)
    return fig


def gradient_at_queries(widths, gradients: dict) -> Figure:
    """How long the gradient at a query is: median, and where 90% of the queries lie. {divided: [(N,) per width]}."""
    fig = new_figure(8.0, 3.2)
    axes = fig.subplots(1, 2, sharey=True)
    for ax, (scaled, per_width) in zip(axes, gradients.items(), strict=True):
        per_width = [np.asarray(lengths) for lengths in per_width]
        low, middle, high = (np.array([np.quantile(g, share) for g in per_width]) for share in (0.05, 0.5, 0.95))
        colour = colour_of(scaled)
        ax.fill_between(widths, np.maximum(low, 1e-30), high, color=colour, alpha=0.25, lw=0, label="9 in 10 queries")
        ax.plot(widths, middle, "o-", color=colour, ms=5, label="median")
        ax.plot(widths, [np.mean(g) for g in per_width], "x", color=COLOURS["black"], ms=7, label="mean")
        ax.set(yscale="log", ylim=(1e-9, 20), title=WORDS[scaled])
        width_axis(ax, widths)
        ax.legend(loc="lower left")
    axes[0].set_ylabel("length of the gradient at q")
    return fig


def divisors(weights: dict) -> Figure:
    """The same scores after different divisions, heaviest key first. weights: {name: (n,)}."""
    fig = new_figure(8.0, 2.9)
    ax = fig.subplots()
    wide = 0.84 / len(weights)
    for k, (name, values) in enumerate(weights.items()):
        colour = (UNDIVIDED, DIVIDED, TOO_SOFT)[k]
        places = np.arange(len(values)) + (k - (len(weights) - 1) / 2) * wide
        ax.bar(places, np.sort(values)[::-1], width=wide, color=colour, label=name)
    n = len(values)
    ax.axhline(1 / n, color=COLOURS["grey"], ls=(0, (4, 4)), lw=1.2, label=f"even share, 1 / {n}")
    ax.set(xlabel="key, heaviest first", ylabel="weight", xticks=range(0, n, 3), xlim=(-0.7, n - 0.3))
    ax.legend(loc="upper right")
    return fig


def trained_pairs(runs: dict, start: str) -> Figure:
    """Runs against the step: loss, entropy of the attention, median gradient at queries and keys.

    runs: {(start, divided): (one loss per step, [(step, {"entropy": …, "q": …, "k": …})], loss on fresh stories)}.
    Runs from another start than `start` are drawn dashed, in the first panel alone.
    """
    fig = new_figure(8.0, 3.5)
    axes, ends = fig.subplots(1, 3, width_ratios=(1.25, 1, 1)), []
    for (begun, divided), (losses, looks, fresh) in runs.items():
        colour, here = colour_of(divided), begun == start
        style = {"lw": 2.2} if here else {"lw": 1.3, "ls": (0, (3, 2)), "alpha": 0.8}
        axes[0].plot(range(1, len(losses) + 1), losses, color=colour, **style)
        ends.append((fresh, colour, "bold" if here else "normal"))
        for ax, name in ((axes[1], "entropy"), (axes[2], "q"), (axes[2], "k")) if here else ():
            steps, values = zip(*((step, look[name]) for step, look in looks), strict=True)
            style = {"marker": "s", "mfc": "white"} if name == "k" else {"marker": "o"}
            ax.plot(steps, values, ms=6, color=colour, label=WORDS[divided], **style)
    height = 0.0
    for fresh, colour, weight in sorted(ends):  # the losses on fresh stories, apart from one another
        height = max(fresh, height + 0.28)
        axes[0].text(len(losses) + 1, height, f"{fresh:.2f}", color=colour, va="center", weight=weight)
    axes[0].set(
        title="loss (dashed: small start)", ylabel="nats per token", ylim=(3.5, 7.8), xlim=(0, 1.22 * len(losses))
    )
    axes[1].legend(loc="center right", bbox_to_anchor=(1, 0.42), handlelength=1.2)
    axes[1].set(title="entropy of attention", ylabel="share of the largest", ylim=(0, 1))
    axes[2].set(title="median gradient", yscale="log", ylabel="length at q (●) and k (□)")
    for ax in axes:
        ax.set_xlabel("step")
    return fig


def stored_losses(runs: dict) -> Figure:
    """The longer runs: a dot for each seed's loss on fresh stories. runs: {variant: {seed: {"loss": …}}}."""
    fig = new_figure(8.0, 2.6)
    ax = fig.subplots()
    for row, (variant, seeds) in enumerate(runs.items()):
        losses = [run["loss"] for run in seeds.values()]
        colour = colour_of(not variant.startswith("unscaled"))
        ax.scatter(losses, [row] * len(losses), s=62, color=colour, ec="white", lw=0.7, zorder=3)
        ax.text(max(losses) + 0.05, row, f"{np.mean(losses):.2f} on average", va="center", color=colour)
    names = [variant.replace("unscaled", "not divided").replace("scaled", "divided") for variant in runs]
    ax.set(yticks=range(len(runs)), yticklabels=names, ylim=(len(runs) - 0.5, -0.5), xlim=(0, 3.2))
    ax.set(xlabel="loss on fresh stories (nats per token), a dot for each seed")
    return fig
