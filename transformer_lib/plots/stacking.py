"""Pictures of notebook 08: the training curve with its yardsticks, sampling, blocks left out, cross-attention."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat, readable

LINE_COLOURS = ("red", "purple", "green")


def training_curves(full, live, marks: dict) -> Figure:
    """Loss and learning rate against the step, of the whole training and of a short one.

    full, live: `History`; marks: {name: nats} for the yardsticks, drawn as horizontal lines.
    """
    fig = new_figure(8.0, 4.8)
    top, below = fig.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = np.arange(1, len(full.losses) + 1)
    top.plot(steps, full.losses, color=COLOURS["sky"], lw=1, label="the toy's training, each step")
    done, fresh = zip(*full.evaluations, strict=True)
    top.plot(done, fresh, "o", color=COLOURS["blue"], ms=5, label="the toy on fresh stories")
    top.plot(np.arange(1, len(live.losses) + 1), live.losses, color=COLOURS["orange"], label="trained just now")
    for (name, value), colour in zip(marks.items(), LINE_COLOURS, strict=True):
        top.axhline(value, color=COLOURS[colour], ls=(0, (5, 3)), lw=1.5)
        place = {"x": 1.05, "ha": "left"} if value < 2 else {"x": len(steps), "ha": "right"}  # where the curve is not
        top.text(y=value + 0.22, s=f"{name}: {value:.2f}", color=COLOURS[colour], weight="bold", **place)
    top.set(xscale="log", xlim=(1, len(steps) * 1.1), ylim=(0, 8.4), ylabel="loss (nats per token)")
    top.legend(loc="center left", bbox_to_anchor=(0.0, 0.35))
    below.plot(steps, full.learning_rates, color=COLOURS["sky"])
    below.plot(np.arange(1, len(live.losses) + 1), live.learning_rates, color=COLOURS["orange"])
    below.set(ylabel="learning rate", xlabel="step (logarithmic)", ylim=(0, None))
    return fig


def sampling(tokens, panels: dict) -> Figure:
    """One distribution under several settings. panels: {title: probabilities}; the first is grey behind all."""
    fig = new_figure(8.0, 2.9)
    axes = fig.subplots(1, len(panels), sharey=True)
    first = np.asarray(next(iter(panels.values())))
    for ax, (title, probabilities) in zip(axes, panels.items(), strict=True):
        ax.bar(range(len(tokens)), first, color="#D0D0D0", width=0.9)
        ax.bar(range(len(tokens)), probabilities, color=COLOURS["blue"], width=0.5)
        ax.set(title=title, xticks=range(len(tokens)), ylim=(0, 1), xlim=(-0.6, len(tokens) - 0.4))
        ax.set_xticklabels(tokens, rotation=90, parse_math=False)
    axes[0].set_ylabel("probability")
    return fig


def arrangements(losses: dict, guess: float) -> Figure:
    """The loss on fresh stories for each way to run the blocks. losses: {name: nats}; guess: ln V, as a line."""
    fig = new_figure(8.0, 0.9 + 0.42 * len(losses))
    ax = fig.subplots()
    best = min(losses, key=losses.get)
    colours = [COLOURS["blue"] if name == best else "#A9BCCB" for name in losses]
    bars = ax.barh(list(losses), list(losses.values()), color=colours, height=0.65)
    ax.bar_label(bars, [f"{loss:.2f}" for loss in losses.values()], padding=4)
    ax.axvline(guess, color=COLOURS["red"], ls=(0, (5, 3)), lw=1.5)
    ax.text(
        guess, -0.75, f"guessing: ln V = {guess:.2f}", color=COLOURS["red"], weight="bold", ha="center", va="bottom"
    )
    ax.set(xlabel="loss on fresh stories (nats per token)", xlim=(0, 1.15 * max(*losses.values(), guess)))
    ax.invert_yaxis()
    return fig


def cross_maps(maps: dict, source, target, alignment) -> Figure:
    """Cross-attention maps, the right cells framed. maps: {title: (T, S)}; alignment: the source place of each target.

    Row i predicts target word i; its last row predicts the end, which translates nothing.
    """
    fig = new_figure(8.0, 4.4)
    axes = fig.subplots(1, len(maps), sharey=True)
    for ax, (title, weights) in zip(np.atleast_1d(axes), maps.items(), strict=True):
        drawn = heat(ax, weights, title=title, limits=(0, 1), numbers=False, xlabel="key: source word")
        ax.set_xticks(range(len(source)), [readable(word) for word in source], rotation=90)
        for row, column in enumerate(alignment):
            if column >= 0:
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=COLOURS["red"], lw=2))
    first = np.atleast_1d(axes)[0]
    first.set_yticks(range(len(target)), [readable(word) for word in target])
    first.set_ylabel("query: the target word to be predicted")
    fig.colorbar(drawn.image, ax=axes, label="weight", pad=0.02, aspect=30)
    return fig


def translation_progress(live, scores, chance: float, stored: list[dict]) -> Figure:
    """Loss against the step, and each head's alignment score: live, and of stored longer runs where there are any.

    live: `History`; scores: (L, H); stored: results of the experiment `translation_trained`.
    """
    fig = new_figure(8.0, 3.2)
    left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
    left.plot(range(1, len(live.losses) + 1), live.losses, color=COLOURS["orange"], label="trained just now")
    names = [f"{i}.{j}" for i in range(len(scores)) for j in range(len(scores[0]))]
    right.bar(range(len(names)), np.ravel(scores), color=COLOURS["orange"], width=0.8)
    for k, run in enumerate(stored):
        label = f"stored runs, {run['steps']:,} steps" if k == 0 else None
        left.plot(*zip(*run["curve"], strict=True), color=COLOURS["blue"], lw=1.2, label=label)
        right.plot(range(len(names)), np.ravel(run["alignment_heads"]), "o", color=COLOURS["blue"], ms=6)
    left.set(xlabel="step", ylabel="loss (nats per word)", ylim=(0, None), title="training loss")
    left.legend()
    chance_line(right, chance)
    right.set(xticks=range(len(names)), yticks=(0, 0.5, 1), ylim=(0, 1.25), xlabel="decoder layer.head",
              ylabel="weight on the right word", title="how well cross-attention is aligned")  # fmt: skip
    right.set_xticklabels(names, rotation=90)
    return fig


def chance_line(ax: Axes, chance: float) -> None:
    ax.axhline(chance, color=COLOURS["red"], ls=(0, (5, 3)), lw=1.5, label=f"spread evenly: {chance:.2f}")
    ax.legend(loc="upper left")
