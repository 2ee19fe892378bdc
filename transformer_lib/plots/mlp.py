"""Pictures of the MLP: its cases, its curves, its weights to scale, and what it does inside a trained model."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat, token_ticks

MATRIX = {"attention": COLOURS["blue"], "mlp": COLOURS["red"], "gate": COLOURS["orange"]}
KNOCKED = {"MLP": COLOURS["red"], "attention": COLOURS["blue"]}


def four_cases(x, hidden, y, names: dict) -> Figure:
    """An MLP in three steps. x: (N, d_in), hidden: (N, d_ff), y: (N, d_out); names: {"x", "hidden", "y"} of columns."""
    fig = new_figure(8.0, 2.7)
    axes = fig.subplots(1, 3, width_ratios=(x.shape[1], hidden.shape[1], y.shape[1]))
    limit = float(np.abs(np.concatenate([x, hidden, y], axis=1)).max())
    for ax, matrix, key, title in zip(
        axes, (x, hidden, y), names, ("input", "hidden, after ReLU", "output"), strict=True
    ):
        heat(ax, matrix, title=title, numbers=".0f", limits=(-limit, limit), diverging=True)
        ax.set_xticks(range(matrix.shape[1]), names[key])
        ax.set_yticks(range(len(x)), [f"case {i + 1}" for i in range(len(x))] if key == "x" else [""] * len(x))
    return fig


def who_moves(attention, mlp, tokens) -> Figure:
    """Which outputs change when one input changes. Each (T, T): row = output position, column = changed position."""
    fig = new_figure(8.0, 4.1)
    axes = fig.subplots(1, 2, sharey=True)
    for ax, matrix, name in zip(axes, (attention, mlp), ("attention", "MLP"), strict=True):
        drawn = heat(ax, np.asarray(matrix) / np.max(matrix), title=name, xlabel="input that was changed",
                     numbers=False, limits=(0, 1))  # fmt: skip
        ax.set(aspect="equal")
        token_ticks(ax, tokens, "x")
    token_ticks(axes[0], tokens, "y")
    axes[0].set_ylabel("output of this position")
    fig.colorbar(drawn.image, ax=axes, label="change of the output (largest = 1)", pad=0.02)
    return fig


def curves(x, functions: dict, slopes: dict) -> Figure:
    """The nonlinearities and their slopes. functions, slopes: {name: (N,) values at x}."""
    fig = new_figure(8.0, 3.5)
    left, right = fig.subplots(1, 2)
    for ax, lines, label in ((left, functions, "φ(x)"), (right, slopes, "slope φ′(x)")):
        for (name, y), style in zip(lines.items(), ("-", "--", "-."), strict=False):
            ax.plot(x, y, style, label=name)
        ax.axhline(0, color="#BBBBBB", lw=1, zorder=0)
        ax.axvline(0, color="#BBBBBB", lw=1, zorder=0)
        ax.set(xlabel="x", ylabel=label, xlim=(x[0], x[-1]))
    left.legend(loc="upper left")
    return fig


def to_scale(d: int, narrow: int) -> Figure:
    """The matrices of a block's attention and of three MLPs, drawn to one scale. narrow: the cut width for SwiGLU."""
    fig = new_figure(8.0, 3.0)
    ax = fig.subplots()
    wide, gap, y = 4 * d, 0.16 * d, 0.0
    stacks = (
        ("attention: 4 d²", [("$W_Q$", d, "attention"), ("$W_K$", d, "attention"), ("$W_V$", d, "attention"),
                             ("$W_O$", d, "attention")]),
        ("4× wide, two matrices: 8 d²", [("W₁", wide, "mlp"), ("W₂", wide, "mlp")]),
        ("4× wide, gated: 12 d²", [("W₁", wide, "gate"), ("W₃", wide, "mlp"), ("W₂", wide, "mlp")]),
        ("⅔ · 4× wide, gated: 8 d²", [("W₁", narrow, "gate"), ("W₃", narrow, "mlp"), ("W₂", narrow, "mlp")]),
    )  # fmt: skip
    for words, matrices in stacks:
        x = 0.0
        for name, width, kind in matrices:
            ax.add_patch(Rectangle((x, y), width, d, fc=MATRIX[kind], alpha=0.75, ec="white"))
            ax.text(x + width / 2, y + d / 2, name, ha="center", va="center", weight="bold",
                    color=COLOURS["black"] if kind == "gate" else "white")  # fmt: skip
            x += width + gap
        ax.text(-2 * gap, y + d / 2, words, ha="right", va="center")
        y += 1.45 * d
    ax.set(xlim=(-7.2 * d, 3 * wide + 2 * gap), ylim=(y - 0.3 * d, -0.2 * d), aspect="equal")
    ax.set_axis_off()
    return fig


def concentration(shares: dict, d_ff: int) -> Figure:
    """How much of the output the loudest neurons make. shares: {layer: [(k, share)]}."""
    fig = new_figure(8.0, 3.0)
    ax = fig.subplots()
    for (layer, points), marker in zip(shares.items(), "os^D", strict=False):
        ax.plot(*zip(*points, strict=True), f"{marker}-", ms=5, label=f"layer {layer}")
    ax.set_xscale("log", base=2)
    ticks = [k for k, _ in points]
    ax.minorticks_off()
    ax.set_xticks(ticks, [f"{k}" for k in ticks])
    ax.set(xlabel=f"neurons kept at each token, of {d_ff}", ylabel="share of the output", ylim=(0, 1.05))
    ax.legend(loc="lower right")
    return fig


def knock_outs(losses: dict, whole: float, guess: float) -> Figure:
    """Losses with one sublayer silenced. losses: {(kind, layer): loss}, kind "MLP" or "attention"; nats per token."""
    fig = new_figure(8.0, 3.0)
    ax = fig.subplots()
    names = [f"{kind}, layer {layer}" for kind, layer in losses]
    bars = ax.barh(names, list(losses.values()), color=[KNOCKED[kind] for kind, _ in losses], height=0.7)
    ax.bar_label(bars, fmt="%.2f", padding=4)
    for value, words, colour in (
        (whole, f"nothing silenced: {whole:.2f}", "black"),
        (guess, f"uniform guess: {guess:.2f}", "grey"),
    ):
        ax.axvline(value, color=COLOURS[colour], ls=(0, (4, 3)), lw=1.4)
        ax.annotate(words, (value, 1), (3, 4), xycoords=("data", "axes fraction"), textcoords="offset points",
                    color=COLOURS[colour])  # fmt: skip
    ax.invert_yaxis()
    ax.set(xlabel="loss on fresh stories (nats per token)", xlim=(0, 1.15 * max(*losses.values(), guess)))
    return fig
