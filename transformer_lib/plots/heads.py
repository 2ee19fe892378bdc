"""Pictures of many heads: why one average is not enough, the cut into heads, what each writes, scores, knock-outs."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat

LAYER_COLOURS = [COLOURS[name] for name in ("sky", "red", "green", "purple", "orange", "blue")]
LABELS = {
    "previous": "the token before",
    "first": "the first token",
    "name": "the name that\ncomes next",
    "quote": "the quotation mark\nto be closed",
    "pronoun": "whom the next\npronoun means",
    "induction": "what followed this\nsymbol last time",
}


def one_or_two(pairs) -> Figure:
    """Pairs of values (n, 2), read by one head that weighs both the same, and by two heads that take one each."""
    pairs = np.asarray(pairs, float)
    means = pairs.mean(axis=1)
    fig = new_figure(8.0, 3.1)
    left, right = fig.subplots(1, 2, width_ratios=(1.25, 1))
    colours = [(COLOURS["red"], COLOURS["grey"], COLOURS["blue"])[int(np.sign(a - b)) + 1] for a, b in pairs]
    for k, (mean, colour) in enumerate(zip(means, colours, strict=True)):
        stacked = int((means[:k] == mean).sum())
        left.plot(mean, stacked, "o", ms=26, color=colour)
        left.text(mean, stacked, f"{pairs[k, 0]:.0f} {pairs[k, 1]:.0f}", color="white", ha="center", va="center")
    left.set(title="one head: the average", xlabel="output of the head", xlim=(2.6, 5.4), ylim=(-0.6, 2.6), yticks=[])
    right.scatter(*pairs.T, s=680, c=colours)
    for a, b in pairs:
        right.text(a, b, f"{a:.0f} {b:.0f}", color="white", ha="center", va="center")
    right.set(title="two heads: both values", xlabel="head 0 reads the fox", ylabel="head 1 reads Mia",
              xlim=(2.5, 5.5), ylim=(2.5, 5.5), xticks=[3, 4, 5], yticks=[3, 4, 5])  # fmt: skip
    return fig


def cut(x, right, wrong) -> Figure:
    """X beside its heads, cut rightly and wrongly. x: (T, d); right, wrong: (H, T, d_k); row i is near 10 · i."""
    heads, (rows, width) = len(right), np.shape(x)
    fig = new_figure(8.0, 3.5)
    grid = fig.add_gridspec(heads, 3, width_ratios=(1.75, 1, 1))
    style = {"limits": (-8, 10 * rows), "numbers": ".0f"}
    ax = fig.add_subplot(grid[:, 0])
    heat(ax, x, title=f"X  {tuple(np.shape(x))}", xlabel="component", ylabel="token", **style)
    ax.set(xticks=range(width), yticks=range(rows))
    for at in range(1, heads):
        ax.axvline(at * width / heads - 0.5, color=COLOURS["red"], lw=3)
    for column, (parts, words) in enumerate(((right, "unflatten, transpose"), (wrong, "view alone: wrong")), start=1):
        for head, part in enumerate(parts):
            ax = fig.add_subplot(grid[head, column])
            title = f"head {head}  {tuple(np.shape(part))}"
            title = f"{words}\n{title}" if head == 0 else title
            heat(ax, part, title=title, **style)
            ax.set(xticks=[], yticks=range(rows))
    return fig


def writes(contributions, total) -> Figure:
    """What each head adds to one token's stream, (H, d), and their sum, (d,)."""
    heads = len(contributions)
    fig = new_figure(8.0, 0.9 + 0.5 * (heads + 1))
    upper, lower = fig.subplots(2, 1, height_ratios=(heads, 1), sharex=True)
    contributions, total = np.round(contributions, 1) + 0.0, np.round(total, 1) + 0.0  # + 0.0: no −0.0
    largest = float(np.abs(np.vstack([contributions, total])).max())
    style = {"limits": (-largest, largest), "diverging": True, "numbers": ".1f"}
    labels = [f"head$_{i}$ · $W_O$[{i}]" for i in range(heads)]
    heat(upper, contributions, **style)
    upper.set_yticks(range(heads), labels)
    heat(lower, np.asarray(total)[None], xlabel="component of the stream", **style)
    lower.set(yticks=[0], yticklabels=["their sum"], xticks=range(len(total)))
    return fig


def split_cost(width: int, divisors, weights) -> Figure:
    """Against the number of heads: the weights of one attention (flat), the patterns, and the width of each head."""
    divisors, weights = np.asarray(divisors), np.asarray(weights)
    fig = new_figure(8.0, 3.2)
    ax = fig.subplots()
    lines = (
        (weights, f"weights: always {weights[0]:,}", "black", "s"),
        (width // divisors, "width of a head: d / h", "red", "v"),
        (divisors, "attention patterns: h", "blue", "^"),
    )
    for values, label, colour, marker in lines:
        ax.plot(divisors, values, marker, ls="-", color=COLOURS[colour], label=label)
    ax.set(xscale="log", yscale="log", xlabel="number of heads h", xticks=divisors, xticklabels=divisors,
           ylabel="count", ylim=(0.6, weights.max() * 4))  # fmt: skip
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(loc="center left", bbox_to_anchor=(0.0, 0.7))
    return fig


def score_dots(trained: dict, untrained: dict) -> Figure:
    """Every head's score for every job, beside chance and the best head of the untrained model; {job: Scores}."""
    fig = new_figure(8.0, 1.1 + 0.62 * len(trained))
    ax = fig.subplots()
    for row, (job, scores) in enumerate(trained.items()):
        ax.axhline(row, color="#E4E4E4", lw=1, zorder=0)
        for layer, values in enumerate(np.asarray(scores.by_head)):
            shift = row + 0.16 * (layer - (len(scores.by_head) - 1) / 2) * 2
            ax.scatter(values, np.full(len(values), shift), s=62, color=LAYER_COLOURS[layer % 6], ec="white", lw=0.7,
                       zorder=3, label=None if row else f"a head of layer {layer}")  # fmt: skip
        best = untrained[job].best[0]
        ax.plot([best, best], [row - 0.33, row + 0.33], color=COLOURS["grey"], lw=2.5, ls=":",
                label=None if row else "best untrained head")  # fmt: skip
        ax.plot([scores.chance] * 2, [row - 0.33, row + 0.33], color=COLOURS["black"], lw=2.5,
                label=None if row else "chance")  # fmt: skip
    ax.set(yticks=range(len(trained)), yticklabels=[LABELS[job] for job in trained], xlim=(-0.01, 1.0),
           ylim=(len(trained) - 0.5, -0.5), xlabel="score: mean weight on …")  # fmt: skip
    ax.legend(loc="upper right")
    return fig


def knock_outs(costs, heads, columns) -> Figure:
    """What each head's knock-out costs, in nats per token: rows are heads, columns kinds of token."""
    fig = new_figure(8.0, 1.0 + 0.34 * len(heads))
    ax = fig.subplots()
    heat(ax, costs, diverging=True, numbers="+.2f", colorbar="added loss (nats per token)")
    ax.set_yticks(range(len(heads)), heads)
    ax.set_xticks(range(len(columns)), columns)
    ax.set(xlabel="what comes next", ylabel="head that is knocked out")
    return fig


def forming(frames, single, uniform: float) -> Figure:
    """Loss and head scores against the step, for two layers and for one. frames, single: lists of looks (dicts)."""
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2)
    for looks, colour, label in ((single, "grey", "one layer"), (frames, "blue", "two layers")):
        left.plot([f["step"] for f in looks], [f["loss"] for f in looks], color=COLOURS[colour], label=label)
    left.axhline(uniform, color=COLOURS["black"], ls=":", label="ln 26: a blind guess")
    left.set(xlabel="training step", ylabel="nats per symbol", ylim=(0, uniform * 1.15),
             title="loss on predictable symbols")  # fmt: skip
    left.legend(loc="lower left")
    steps = [f["step"] for f in frames]
    right.plot(steps, [f["induction"].max() for f in frames], color=COLOURS["blue"], label="induction")
    right.plot(steps, [f["previous"].max() for f in frames], color=COLOURS["orange"], ls="--", label="token before")
    right.plot([f["step"] for f in single], [f["induction"].max() for f in single], color=COLOURS["grey"],
               label="induction, one layer")  # fmt: skip
    right.set(xlabel="training step", ylabel="best head's score", ylim=(0, 1), title="scores")
    right.legend(loc="upper left")
    return fig


class Film:
    """Curves with a mark at the chosen step, beside one head's attention map at that step, right cells framed."""

    def __init__(self, fig: Figure, frames, symbols, right):
        """frames: looks with step, loss, induction; right: {query: key} where an induction head should look."""
        grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.35))
        steps = [f["step"] for f in frames]
        upper, lower = fig.add_subplot(grid[0, 0]), fig.add_subplot(grid[1, 0])
        upper.plot(steps, [f["loss"] for f in frames], color=COLOURS["black"])
        upper.set(title="loss", ylabel="nats", ylim=(0, None), xticklabels=[])
        self.curve = lower.plot(steps, [0.0] * len(steps), color=COLOURS["blue"])[0]
        lower.set(title="this head's induction score", xlabel="training step", ylim=(0, 1))
        self.marks = [ax.axvline(0, color=COLOURS["red"], lw=2) for ax in (upper, lower)]
        ax = fig.add_subplot(grid[:, 1])
        blank = np.where(np.tri(len(symbols), dtype=bool), 0.0, np.nan)
        self.map = heat(ax, blank, limits=(0, 1), numbers=False, xlabel="key", ylabel="query", colorbar="weight")
        ax.set_xticks(range(len(symbols)), symbols)
        ax.set_yticks(range(len(symbols)), symbols)
        ax.set_title("weights; framed: where it should look")
        for query, key in right.items():
            ax.add_patch(Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, ec=COLOURS["red"], lw=1.6))

    def set(self, step: int, scores, weights) -> None:
        """scores: this head's, one per frame; weights: (T, T) at this step."""
        for mark in self.marks:
            mark.set_xdata([step, step])
        self.curve.set_ydata(scores)
        self.map.set(np.where(np.tri(len(weights), dtype=bool), weights, np.nan))
