"""Pictures of the residual stream: who wrote how much, norms, gradients along a deep stack, warm-up, and the lens."""

import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS, SEQUENTIAL, new_figure
from transformer_lib.plots.tokens import readable, token_ticks

POST, PRE, NO_RESIDUAL = COLOURS["red"], COLOURS["blue"], COLOURS["grey"]
RUNS = (  # what a run's name holds, and how it is drawn
    ("GPT-2", COLOURS["orange"], "-"),
    ("post-norm, no", COLOURS["red"], "-"),
    ("post-norm", COLOURS["red"], (0, (3, 1.5))),
    ("pre-norm, no", COLOURS["blue"], "-"),
    ("pre-norm", COLOURS["blue"], (0, (3, 1.5))),
)


def style_of(run: str) -> dict:
    """Colour and dashes of a run by its name: post-norm red, pre-norm blue, with warm-up dashed."""
    colour, dashes = next((colour, dashes) for part, colour, dashes in RUNS if part in run)
    return {"color": colour, "ls": dashes}


def colour_of(writer: str) -> str:
    """The embedding grey, heads blue, MLPs red."""
    return COLOURS["grey" if writer == "embedding" else "red" if writer.endswith("MLP") else "blue"]


def written(lengths, names, tokens) -> Figure:
    """Discs, writer by token; the area is the length of what was written. lengths: (N, T), the first row lowest."""
    lengths = np.asarray(lengths)
    fig = new_figure(8.0, 0.9 + 0.34 * len(names))
    ax = fig.subplots()
    largest = lengths.max()
    for row, (name, values) in enumerate(zip(names, lengths, strict=True)):
        ax.axhline(row, color="#EEEEEE", lw=1, zorder=0)
        ax.scatter(
            range(len(tokens)),
            [row] * len(tokens),
            s=1150 * values / largest,
            color=colour_of(name),
            lw=0,
            clip_on=False,
        )
    token_ticks(ax, tokens, "x")
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(-0.6, len(tokens) - 0.4), ylim=(-0.8, len(names) - 0.3))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


def tiny_vectors(sizes, curves: dict, streams=None) -> Figure:
    """Size after the norm against size before. curves: {name: one number per size}; the first is the right one.

    streams: (least, largest) standard deviation of a model's streams, drawn as a grey zone.
    """
    fig = new_figure(8.0, 2.9)
    ax = fig.subplots()
    styles = ((COLOURS["blue"], "-"), (COLOURS["red"], (0, (4, 2))), (COLOURS["green"], (0, (1, 1))))
    for (name, values), (colour, dashes) in zip(curves.items(), styles, strict=False):
        ax.plot(sizes, values, color=colour, ls=dashes, label=name)
    if streams is not None:
        ax.axvspan(*streams, color="#E9E9E9", lw=0, zorder=0)
        ax.text(0.92 * streams[0], 0.06, "the toy's streams", color="#555555", ha="right")
    ax.set(xscale="log", xlabel="standard deviation before the norm", ylabel="after the norm", ylim=(0, 1.2),
           xlim=(sizes[0], sizes[-1]))  # fmt: skip
    ax.legend(loc="center right")
    return fig


def profiles(found: dict) -> Figure:
    """Above the gradient at each block's matrices, below how alike the positions are. {wiring: {depth: Profile}}."""
    fig = new_figure(8.0, 5.0)
    axes = fig.subplots(2, len(found), sharex=True, sharey="row")
    shades = matplotlib.colormaps["viridis"]
    for column, (wiring, by_depth) in zip(axes.T, found.items(), strict=True):
        for k, (depth, profile) in enumerate(by_depth.items()):
            colour = shades(0.85 * (1 - k / max(len(by_depth) - 1, 1)))
            column[0].plot(range(1, depth + 1), profile.weights, "-", color=colour, label=f"{depth} blocks")
            column[0].plot([depth], profile.weights[-1:], "o", color=colour, ms=7)
            column[1].plot(range(depth + 1), profile.alike, "-", color=colour)
            column[1].plot([depth], profile.alike[-1:], "o", color=colour, ms=7)
        column[0].set(title=wiring, yscale="log")
        column[1].set(xlabel="block", ylim=(-0.05, 1.08), xticks=(1, 12, 24, 36, 48))
    axes[0, 0].set_ylabel("gradient at its weights")
    axes[1, 0].set_ylabel("likeness of positions")
    axes[0, 1].legend(loc="lower right", ncols=2, handlelength=1, columnspacing=0.8, borderaxespad=0)
    return fig


def schedule(rates, warmup: int, rising, falling) -> Figure:
    """The paper's learning rate at steps 1, 2, …, and its two branches, dashed."""
    fig = new_figure(8.0, 2.8)
    ax = fig.subplots()
    steps = np.arange(1, len(rates) + 1)
    top = 1.35 * max(rates)
    for branch in (rising, falling):
        ax.plot(
            steps, np.where(np.asarray(branch) < top, branch, np.nan), color=COLOURS["grey"], lw=1.3, ls=(0, (4, 3))
        )
    ax.plot(steps, rates, color=COLOURS["blue"], lw=2.6)
    ax.plot([warmup], [max(rates)], "o", color=COLOURS["red"], ms=9)
    ax.annotate(f"step {warmup:,}: {max(rates):.1e}", (warmup, max(rates)), (10, 4), textcoords="offset points")
    ax.text(steps[-1] * 0.6, falling[int(steps[-1] * 0.6)] * 1.14, "∝ 1 / √step")
    ax.text(warmup * 0.62, max(rates) * 0.2, "∝ step")
    ax.set(xlabel="step", ylabel="learning rate", xlim=(0, steps[-1]), ylim=(0, top))
    ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    return fig


def trained(runs: dict, level: float, words: str, warmup: int, width: int = 8) -> Figure:
    """Losses against the step, averaged over `width` steps. runs: {name: losses}; level, words: a line to compare."""
    fig = new_figure(8.0, 3.6)
    ax = fig.subplots()
    ax.axhline(level, color=COLOURS["black"], lw=1.2, ls=(0, (1, 2)))
    n = len(next(iter(runs.values())))
    ax.text(n, level + 0.06, words, ha="right", va="bottom", color="#444444")
    ax.axvspan(0, warmup, color="#F1F1F1", lw=0, zorder=0)
    ax.text(warmup - 1, 7.0, "warm-up of the dashed run", ha="right", va="center", color="#555555")
    for name, losses in runs.items():
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        ax.plot(np.arange(width, n + 1), smooth, label=name, **style_of(name))
    ax.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, 7.4), xlim=(0, n))
    ax.legend(loc="lower left")
    return fig


def stored(curves: dict, seconds: float) -> Figure:
    """The long comparison: mean loss and spread over seeds. curves: {name: [[(step, loss), …] per seed]}."""
    fig = new_figure(8.0, 4.4)
    ax = fig.subplots()
    for name, seeds in curves.items():
        steps = [step for step, _ in seeds[0]]
        losses = np.array([[loss for _, loss in seed] for seed in seeds])
        ax.fill_between(steps, losses.min(0), losses.max(0), color=style_of(name)["color"], alpha=0.15, lw=0)
        ax.plot(steps, losses.mean(0), label=f"{name} ({len(seeds)} seeds)", **style_of(name))
    ax.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, 7), title=f"about {seconds:.0f} s per run")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.22), ncols=2)
    return fig


def sizes(pre, post, tokens, before, after) -> Figure:
    """Left: the stream's size along a deep stack. Right: the size of each token's stream before and after the norm."""
    fig = new_figure(8.0, 3.2)
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.25))
    for name, values, colour in (("pre-norm", pre, PRE), ("post-norm", post, POST)):
        left.plot(range(len(values)), values, color=colour)
        left.annotate(name, (len(values) - 1, values[-1]), (0, 8), textcoords="offset points", ha="right", color=colour)
    left.set(xlabel="after block", ylabel="root mean square", ylim=(0, 1.2 * max(pre)), title="48 blocks, untrained")
    left.set_xticks((0, 12, 24, 36, 48))
    places = np.arange(len(tokens))
    right.bar(places - 0.2, before, width=0.4, color=COLOURS["grey"], label="stream at the top")
    right.bar(places + 0.2, after, width=0.4, color=COLOURS["blue"], label="÷ its root mean square")
    token_ticks(right, tokens, "x")
    right.set(title="your toy", ylim=(0, 1.55 * max(before)))
    right.legend(loc="upper left")
    return fig


def lens(tokens, words, probabilities, layers) -> Figure:
    """What the stream would predict: a row per layer, the embedding lowest; words: (L + 1) lists of T pieces."""
    fig = new_figure(8.0, 1.3 + 0.5 * len(layers))
    ax = fig.subplots()
    colours = matplotlib.colormaps[SEQUENTIAL]
    image = ax.imshow(np.asarray(probabilities), cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="auto", origin="lower")
    longest = max(4, int(70 / len(tokens)))
    for i, (row, shares) in enumerate(zip(words, probabilities, strict=True)):
        for j, (word, share) in enumerate(zip(row, shares, strict=True)):
            red, green, blue, _ = colours(float(share))
            ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "#111111"
            ax.text(j, i, readable(word, longest), ha="center", va="center", color=ink, parse_math=False, size=11)
    token_ticks(ax, tokens, "x")
    ax.set_yticks(range(len(layers)), [textwrap.fill(layer, 16) for layer in layers])
    ax.set_xlabel("token read last")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, label="probability", pad=0.015)
    return fig
