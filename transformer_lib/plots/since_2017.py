"""Pictures of notebook 11: the ladder, positions as groups, expert load, unmasking, and all that was trained."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS, CYCLE, new_figure
from transformer_lib.plots.tokens import heat

FIRST, LAST, REST = COLOURS["blue"], COLOURS["green"], COLOURS["grey"]


def ladder(live: dict, rungs: dict) -> Figure:
    """Left: losses of the short runs, {name: losses of each step}. Right: every stored rung, the best at the top.

    rungs: {name: (mean, lowest, highest)} on fresh stories; without any, the right panel says how to get them.
    """
    fig = new_figure(8.0, 4.9)
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.05))
    for (name, losses), colour in zip(live.items(), (FIRST, LAST, COLOURS["red"]), strict=False):
        width = max(1, len(losses) // 40)
        pieces = np.array(losses[: len(losses) // width * width]).reshape(-1, width).mean(axis=1)
        left.plot(np.arange(1, len(pieces) + 1) * width, pieces, color=colour, label=name)
    left.set(title="trained here, one seed", xlabel="step", ylabel="training loss (nats per token)")
    left.legend()
    if not rungs:
        missing(right, "no stored runs yet:\n`make experiments` trains\nall sixteen models")
        return fig
    ranked = sorted(rungs, key=lambda name: -rungs[name][0])
    for row, name in enumerate(ranked):
        spread(right, row, rungs[name], FIRST if name == "2017" else LAST if name.count("+") == 3 else REST)
    right.axvline(rungs["2017"][0], color=FIRST, ls=(0, (5, 3)), lw=1.2, zorder=0)
    right.set_yticks(range(len(ranked)), ["all four" if name.count("+") == 3 else name for name in ranked])
    right.set(title="all sixteen, several seeds", xlabel="loss on fresh stories\n(nats per token; mean and range)")
    return fig


def spread(ax: Axes, row: float, found: tuple, colour: str) -> None:
    """A mean with the range over seeds, on one row."""
    mean, low, high = found[:3]
    ax.errorbar([mean], [row], xerr=[[mean - low], [high - mean]], fmt="o", ms=6, capsize=4, color=colour)


def missing(ax: Axes, words: str) -> None:
    """A panel whose results are not there yet says so."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, color="#555555")


def positions(generators: dict, scores: dict) -> Figure:
    """Top: the matrices G, {name: (d, d)}. Below: q · exp((n − m) G) k against the distance m − n.

    scores: {name: list of curves}, each from distance 0 on.
    """
    fig = new_figure(8.0, 4.3)
    axes = fig.subplots(2, len(generators), height_ratios=(1.1, 1))
    for ax, (name, matrix) in zip(axes[0], generators.items(), strict=True):
        limit = float(np.abs(matrix).max())
        heat(ax, matrix, title=name, limits=(-limit, limit), diverging=True, numbers=False)
        ax.set(xticks=[], yticks=[], aspect="equal")
    for ax, (name, curves) in zip(axes[1], scores.items(), strict=True):
        for curve, colour in zip(curves, CYCLE, strict=False):
            ax.plot(range(len(curve)), curve, color=colour, lw=1.6)
        ax.set(xlabel="distance", title=name)
    axes[1, 0].set_ylabel("score")
    return fig


def load(loads: dict) -> Figure:
    """The share of all choices that fell on each expert. loads: {title: (L, E)}."""
    fig = new_figure(8.0, 3.1)
    axes = np.atleast_1d(fig.subplots(1, len(loads), sharey=True))
    for ax, (title, layers) in zip(axes, loads.items(), strict=True):
        layers = np.asarray(layers)
        width = 0.8 / len(layers)
        for i, shares in enumerate(layers):
            ax.bar(np.arange(len(shares)) + (i - (len(layers) - 1) / 2) * width, shares, width, color=CYCLE[i],
                   label=f"layer {i}")  # fmt: skip
        ax.axhline(1 / layers.shape[1], color=COLOURS["black"], ls=(0, (5, 3)), lw=1.2)
        ax.set(title=title, xlabel="expert", xticks=range(layers.shape[1]))
    axes[0].set_ylabel("share of the choices")
    axes[0].legend()
    return fig


def uncovering(steps, shares: dict) -> Figure:
    """The share of right sentences against the number of steps. shares: {order: one share per number of steps}."""
    fig = new_figure(8.0, 3.0)
    ax = fig.subplots()
    for (name, values), colour in zip(shares.items(), (COLOURS["blue"], COLOURS["red"]), strict=False):
        ax.plot(steps, values, "o-", color=colour, label=name)
    ax.set(xlabel="steps (1: all seven words at once; 7: one word each)", ylabel="share of right sentences",
           ylim=(-0.03, 1.03), xticks=list(steps))  # fmt: skip
    ax.legend(loc="upper left")
    return fig


def all_trained(rows: list[dict], context: int = 1000) -> Figure:
    """What was trained, a row each: parameters, memory of one sequence, loss.

    rows: [{"name", "parameters", "active", "growing", "fixed", "loss": (mean, low, high) or None, "words": why None}].
    """
    fig = new_figure(8.0, 0.9 + 0.42 * len(rows))
    size, memory, loss = fig.subplots(1, 3, sharey=True)
    names = [row["name"] for row in rows]
    at = np.arange(len(rows))
    size.barh(at, [row["parameters"] / 1e3 for row in rows], color="#C9D9E6")
    size.barh(at, [row["active"] / 1e3 for row in rows], color=COLOURS["blue"], height=0.45)
    size.set(
        xlabel="thousand parameters\n(light: stored, dark: used)",
        yticks=at,
        yticklabels=[name.replace(", ", ",\n") for name in names],
    )
    size.invert_yaxis()
    for row, about in enumerate(rows):
        if about["growing"] is None:
            memory.text(0.02, row, "no cache", va="center", color="#555555", transform=memory.get_yaxis_transform())
        else:
            kept = (about["fixed"] + context * about["growing"]) / 1024
            memory.barh([row], [kept], color=COLOURS["orange"])
        if about["loss"] is None:
            loss.text(0.02, row, about["words"], va="center", color="#555555", transform=loss.get_yaxis_transform())
        else:
            spread(loss, row, about["loss"], COLOURS["red"])
    memory.set_xlabel(f"KiB of memory\nafter {context:,} tokens")
    loss.set_xlabel("loss\n(nats per token)")
    return fig
