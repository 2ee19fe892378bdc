"""Panels of the explorers of notebook 03: made once, then changed in place by `set`."""

import math
import textwrap

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from transformer_lib.plots.scaling import DIVIDED, colour_of, normal
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import heat


class SaturationLab:
    """Scores, the weights and the Jacobian of one query, the gradients of many, and two meters: for an explorer."""

    EDGES = np.linspace(-30, 30, 121)  # scores
    DECADES = np.linspace(-8, 2, 41)  # log10 of the gradient's length
    MOST = 64  # keys

    def __init__(self, fig: Figure):
        grid = fig.add_gridspec(2, 6)
        scores, weights = fig.add_subplot(grid[0, :3]), fig.add_subplot(grid[0, 3:])
        jacobian, gradient, meters = (fig.add_subplot(grid[1, k : k + 2]) for k in (0, 2, 4))
        self.histogram = scores.stairs(np.zeros(120), self.EDGES, fill=True, color=DIVIDED, alpha=0.4)
        (self.theory,) = scores.plot(self.EDGES, 0 * self.EDGES, color=COLOURS["black"], lw=1.6)
        self.outside = scores.text(0.98, 0.93, "", transform=scores.transAxes, ha="right", va="top")
        scores.set(title="scores (line: theory)", xlabel="score", ylim=(0, 1.15), yticks=[], xlim=(-30, 30))
        self.bars = PolyCollection([], lw=0)
        weights.add_collection(self.bars)
        weights.set(title="weights of one query", xlabel="keys", ylim=(0, 1.05), xlim=(0, 1), xticks=[])
        self.jacobian = heat(jacobian, np.zeros((2, 2)), limits=(-0.25, 0.25), diverging=True, numbers=False,
                             title="its Jacobian ∂a/∂s", colorbar="", xlabel="score")  # fmt: skip
        self.jacobian.image.set_extent((0, 1, 1, 0))
        jacobian.set(xticks=[], yticks=[], ylabel="weight")
        self.others = gradient.stairs(np.zeros(40), self.DECADES, color=COLOURS["grey"], lw=1.4)
        self.gradients = gradient.stairs(np.zeros(40), self.DECADES, fill=True, color=DIVIDED, alpha=0.5)
        self.median = gradient.axvline(0, color=COLOURS["black"], lw=2)
        gradient.set(title="gradients at 256 queries", xlabel="length (grey: divided)", yticks=[], ylim=(0, 1.1),
                     xticks=[-8, -4, 0], xticklabels=["≤ 10⁻⁸", "10⁻⁴", "1"], xlim=(-8, 2))  # fmt: skip
        names = ("entropy ÷ log₂ n", "largest weight", "Jacobian × 2")
        self.meters = meters.barh(names, [0, 0, 0], color=DIVIDED, height=0.42)
        meters.barh(names, [1, 1, 1], color="#EEEEEE", height=0.42, zorder=0)
        self.numbers = [meters.text(0, k - 0.46, "", va="center") for k in range(3)]
        meters.set(xlim=(0, 1), ylim=(2.5, -0.95), xticks=[0, 1], yticks=[], title="mean of the queries")
        meters.spines[:].set_visible(False)
        self.names = names

    def set(self, scores, deviation, weights, jacobian, gradients, others, meters, divided: bool) -> None:
        """scores: any shape; weights: (n,); jacobian: (n, n); gradients, others: (N,) lengths; meters: three shares."""
        counts, middle = np.histogram(scores, self.EDGES)[0], (self.EDGES[1:] + self.EDGES[:-1]) / 2
        peak = max(np.histogram(np.clip(scores, -29.9, 29.9), self.EDGES)[0][1:-1].max(), 1)
        bell = normal(middle, deviation)
        self.histogram.set_data(counts / peak)
        self.theory.set_data(middle, bell / bell.max() * min(1, np.size(scores) * 0.5 * bell.max() / peak))
        outside = float((np.abs(scores) > 30).mean())
        self.outside.set_text(f"{outside:.0%} lie outside" if outside >= 0.005 else "")
        n = len(weights)
        sides = np.array([0.06, 0.06, 0.94, 0.94])
        self.bars.set_verts([np.column_stack(((k + sides) / n, [0, w, w, 0])) for k, w in enumerate(weights)])
        self.jacobian.set(jacobian)
        for stairs, lengths in ((self.others, others), (self.gradients, gradients)):
            counts = np.histogram(np.log10(np.clip(lengths, 1.01e-8, 99)), self.DECADES)[0]
            stairs.set_data(counts / counts.max())
        self.median.set_xdata([math.log10(max(np.median(gradients), 1e-8))] * 2)
        for bar, text, name, value in zip(self.meters, self.numbers, self.names, meters, strict=True):
            bar.set_width(value)
            text.set_text(f"{name}: {value:.2f}")
        for artist in (self.histogram, self.gradients, self.bars, *self.meters):
            artist.set_color(colour_of(divided))


class TokenMap:
    """An attention map of a text that may change: at a fixed place, with room for its labels."""

    def __init__(self, fig: Figure, place=(0.15, 0.26, 0.33, 0.58)):
        self.ax = fig.add_axes(place)
        self.map = heat(self.ax, np.zeros((2, 2)), limits=(0, 1), numbers=False, xlabel="key", ylabel="query",
                        title="weights: dark 0, yellow 1")  # fmt: skip
        self.map.image.set_extent((0, 1, 1, 0))
        self.tokens = None

    def set(self, weights, tokens) -> None:
        """weights: (T, T), row = query; what lies in its future stays grey."""
        seen = np.tri(len(tokens), dtype=bool)
        self.map.set(np.where(seen, weights, np.nan))
        if tokens != self.tokens:
            places = (np.arange(len(tokens)) + 0.5) / len(tokens)
            self.ax.set_xticks(places, tokens, rotation=90, parse_math=False)
            self.ax.set_yticks(places, tokens, parse_math=False)
            self.tokens = tokens


class LossCurve:
    """The loss of a text against the factor on the scores, beside that of whole stories, with a ring at the factor.

    marks: {words: factor}, dashed lines; a factor below 1 has its words at the left.
    """

    def __init__(self, fig: Figure, factors, marks: dict, stories):
        ax = fig.add_axes((0.565, 0.14, 0.42, 0.62))
        self.ax, self.least_top = ax, 1.25 * max(stories)
        for name, factor in marks.items():
            ax.axvline(factor, color=COLOURS["grey"], ls=(0, (4, 4)), lw=1.2)
            left = factor < 1
            ax.text(factor * (0.9 if left else 1.1), 1, name, ha="right" if left else "left", va="top",
                    color="#555555", transform=ax.get_xaxis_transform())  # fmt: skip
        ax.plot(factors, stories, color=COLOURS["grey"], label="fresh stories")
        (self.curve,) = ax.plot(factors, stories, color=COLOURS["blue"], label="your sentence")
        ring = {"mfc": "white", "mec": COLOURS["black"], "mew": 2, "ms": 10}
        (self.dot,) = ax.plot([1], [0], "o", label="your sentence, now", **ring)
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
        ax.set(ylim=(0, self.least_top), xlim=(factors[0], factors[-1]))
        ax.set(xlabel="all scores ×", ylabel="loss (nats per token)",
               xticks=[1 / 16, 1 / 4, 1, 4, 16], xticklabels=["1/16", "1/4", "1", "4", "16"])  # fmt: skip
        ax.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.0), ncols=2, borderaxespad=0.1, handlelength=1.2,
                  columnspacing=1.0)  # fmt: skip

    def set(self, losses, factor: float, loss: float) -> None:
        top = max(self.least_top, 1.1 * max(losses))
        if top != self.ax.get_ylim()[1]:  # only another sentence can change it
            self.ax.set_ylim(0, top)
        self.curve.set_ydata(losses)
        self.dot.set_data([factor], [loss])


class CheckList:
    """A list of checks, of which one has been run."""

    def __init__(self, fig: Figure, names):
        ax = fig.add_axes((0.56, 0.05, 0.43, 0.8))
        ax.set(xlim=(0, 1), ylim=(len(names) + 1.4, -0.6))
        ax.set_axis_off()
        self.marks = [ax.text(0, k, "○", va="center", weight="bold", size="large") for k in range(len(names))]
        self.words = [ax.text(0.09, k, name, va="center") for k, name in enumerate(names)]
        self.names = names
        self.state = ax.text(0, len(names) + 0.1, "", va="center", weight="bold")
        self.detail = ax.text(0, len(names) + 0.9, "", va="center")

    def set(self, chosen: str, passes: bool, words: str, on: bool) -> None:
        colour = COLOURS["green" if passes else "red"]
        for name, mark, text in zip(self.names, self.marks, self.words, strict=True):
            run = name == chosen
            mark.set(text=("✓" if passes else "✗") if run else "○", color=colour if run else COLOURS["grey"])
            text.set(weight="bold" if run else "normal", color=COLOURS["black"] if run else COLOURS["grey"])
        self.state.set(text=f"bug {'on' if on else 'off'}: {'passes' if passes else 'fails'}", color=colour)
        self.detail.set_text(textwrap.fill(words, 42))
