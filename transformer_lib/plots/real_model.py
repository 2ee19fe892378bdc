"""Pictures of notebook 12: jobs of 270 heads, repeated tokens, the sink, and what fewer bits cost."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from transformer_lib.plots.heads import LABELS
from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat

ORDER_COLOURS = [COLOURS[name] for name in ("red", "blue", "orange", "grey")]


def score_maps(scores: dict) -> Figure:
    """Every head's score for each job, layers as rows and heads as columns, the best framed; {job: Scores}."""
    fig = new_figure(8.0, 5.6)
    axes = fig.subplots(1, len(scores), sharey=True)
    for ax, (job, found) in zip(axes, scores.items(), strict=True):
        layers, heads = found.by_head.shape
        drawn = heat(ax, found.by_head, limits=(0, 1), numbers=False, title=LABELS[job], xlabel="head")
        _, layer, head = found.best
        ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, ec=COLOURS["red"], lw=2))
        ax.set(xticks=range(heads), yticks=range(0, layers, 3))
    axes[0].set_ylabel("layer")
    fig.colorbar(drawn.image, ax=axes, label="score: mean weight there", pad=0.015, aspect=35)
    return fig


def repeats(losses: dict, first: int, knocked: dict) -> Figure:
    """Left: the loss around the start of a repeat. Right: the loss inside it, against how many heads are knocked out.

    losses: {words: one loss per place}, the places counted from `first` (negative: before the repeat). knocked:
    {words: {number of heads: loss}}. The first of `losses` is the whole model.
    """
    fig = new_figure(8.0, 4.6)
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    for (words, values), colour in zip(losses.items(), [COLOURS["black"], *ORDER_COLOURS], strict=False):
        left.plot(range(first, first + len(values)), values, "o-", ms=4, lw=1.6, color=colour, label=words)
    left.axvline(-0.5, color=COLOURS["grey"], ls=(0, (4, 3)), lw=1.2)
    left.set(xlabel="place after the repeat begins (tokens)", title="loss of each token (nats)", ylim=(0, None))
    for (words, by_count), colour in zip(knocked.items(), ORDER_COLOURS, strict=True):
        right.plot(list(by_count), list(by_count.values()), "o-", color=colour, label=words)
    counts = list(next(iter(knocked.values())))
    right.set_xscale("symlog", base=2, linthresh=1)
    right.xaxis.set_minor_locator(NullLocator())
    right.set_xticks(counts, counts)
    right.set(xlabel="heads knocked out, of 270", title="loss inside the repeat (nats)", ylim=left.get_ylim())
    for ax in (left, right):
        ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), borderaxespad=0)
    return fig


def sink(lengths, shares) -> Figure:
    """Left: the stream's length at the first token and at the others. Right: the weight that it gets, by layer.

    lengths: (L, T); shares: (L, H), each head's mean weight on the first token.
    """
    lengths, shares = np.asarray(lengths), np.asarray(shares)
    fig = new_figure(8.0, 3.3)
    left, right = fig.subplots(1, 2)
    layers = range(len(lengths))
    left.plot(layers, lengths[:, 0], "o-", ms=4, color=COLOURS["red"], label="first token")
    left.plot(layers, lengths[:, 1:].mean(axis=1), "o-", ms=4, color=COLOURS["blue"], label="mean of the others")
    left.set(yscale="log", xlabel="after block", title="length of the stream", ylim=(10, None))
    left.legend(loc="lower right")
    for head in shares.T:
        right.plot(layers, head, "o", ms=4, color="#B9B9B9")
    right.plot(layers, shares.mean(axis=1), "-", color=COLOURS["red"], lw=2.4)
    right.set(xlabel="layer", ylim=(0, 1.25), yticks=np.linspace(0, 1, 6), title="weight on the first token")
    right.plot([], [], "o", ms=4, color="#B9B9B9", label="a head")
    right.plot([], [], "-", color=COLOURS["red"], label="mean of its layer")
    right.legend(loc="upper left", ncols=2)
    return fig


def fewer_bits(megabytes: dict, losses: dict) -> Figure:
    """Loss against size. Both: {bits per number: value}."""
    fig = new_figure(8.0, 3.2)
    ax = fig.subplots()
    bits = sorted(losses)
    ax.plot([megabytes[b] for b in bits], [losses[b] for b in bits], "o-", color=COLOURS["blue"], ms=8)
    for b in bits:
        ax.annotate(f"{b} bits", (megabytes[b], losses[b]), (7, 6), textcoords="offset points")
    ax.set(xscale="log", xlabel="size of all weights (MB)", ylabel="loss (nats per token)",
           ylim=(0, 1.15 * max(losses.values())))  # fmt: skip
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([megabytes[b] for b in bits], [f"{megabytes[b]:.0f}" for b in bits])
    ax.set_xlim(0.9 * min(megabytes.values()), 1.35 * max(megabytes.values()))
    return fig
