"""Panels of the explorers of notebook 06: made once, then changed in place by `set`."""

import numpy as np
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS

LEAST = 1e-5  # smaller gradients are drawn here


class NormLab:
    """A vector, and what the two norms make of it; the outlines stay at the vector before it was changed."""

    def __init__(self, fig: Figure, start, layer, rms):
        axes = fig.subplots(1, 3, width_ratios=(1.15, 1, 1))
        places = np.arange(1, len(start) + 1)
        parts = (("x", start, COLOURS["grey"]), ("LayerNorm", layer, COLOURS["red"]), ("RMSNorm", rms, COLOURS["blue"]))
        self.bars, self.notes = [], []
        for ax, (title, values, colour) in zip(axes, parts, strict=True):
            self.bars.append(ax.bar(places, values, color=colour, width=0.66))
            ax.bar(places, values, fill=False, edgecolor=COLOURS["black"], width=0.66, lw=1.2, ls=(0, (2, 1.5)))
            ax.axhline(0, color=COLOURS["grey"], lw=1)
            self.notes.append(ax.text(0.5, 0.99, "", transform=ax.transAxes, ha="center", va="top"))
            ax.set(title=title, xticks=places, ylim=(-3, 3.6))
        axes[0].set(ylim=(-10, 12))
        for ax in axes:
            ax.set_xlabel("component")

    def set(self, vectors) -> None:
        """vectors: x, LayerNorm(x) and RMSNorm(x), (d,) each."""
        for bars, note, values in zip(self.bars, self.notes, vectors, strict=True):
            for bar, value in zip(bars, values, strict=True):
                bar.set_height(value)
            note.set_text(
                f"mean {values.mean().round(2) + 0.0:.2f}, RMS {np.sqrt(np.square(values).mean()):.2f}".replace(
                    "-", "−"
                )
            )


class GradientLab:
    """Gradients along a stack on the left; on the right how alike the positions are, and how long the stream."""

    def __init__(self, fig: Figure, deepest: int):
        left, right = fig.subfigures(1, 2, width_ratios=(1.35, 1))
        gradient, (alike, size) = left.subplots(), right.subplots(2, 1, sharex=True)
        self.weights = gradient.plot([], [], "o-", color=COLOURS["blue"], ms=5, label="at the block's weights")[0]
        self.before = gradient.plot([], [], "-", color="#BBBBBB", lw=4, label="the setting before")[0]
        self.stream = gradient.plot([], [], "s-", color=COLOURS["sky"], ms=4, lw=1.2, label="at the stream")[0]
        self.alike_before = alike.plot([], [], "-", color="#BBBBBB", lw=4)[0]
        self.alike = alike.plot([], [], "o-", color=COLOURS["green"], ms=4)[0]
        self.size = size.plot([], [], "o-", color=COLOURS["purple"], ms=4)[0]
        gradient.set(title="length of the gradient", yscale="log", ylim=(LEAST / 2, 40), xlabel="block")
        gradient.set_yticks([LEAST, 1e-4, 1e-3, 0.01, 0.1, 1, 10], ["≈ 0", "10⁻⁴", "0.001", "0.01", "0.1", "1", "10"])
        self.legend = gradient.legend(loc="lower right", borderaxespad=0.1)
        alike.axhline(1, color=COLOURS["grey"], lw=1, ls=(0, (4, 4)))
        alike.set(title="likeness of positions (cosine)", ylim=(-0.1, 1.12), yticks=(0, 0.5, 1))
        size.set(title="size of the stream", yscale="log", ylim=(LEAST / 2, 40), xlabel="block")
        size.set_yticks([LEAST, 0.01, 1, 10], ["≈ 0", "0.01", "1", "10"])
        for ax in (gradient, alike, size):
            ax.minorticks_off()
            ax.set(xlim=(-1, deepest + 1), xticks=(0, 12, 24, 36, 48))

    def set(self, profile, post: bool) -> None:
        """profile: `gradients.Profile`."""
        depth = len(profile.weights)
        self.before.set_data(*self.weights.get_data())
        self.alike_before.set_data(*self.alike.get_data())
        self.weights.set_data(range(1, depth + 1), profile.weights.clamp(min=LEAST))
        for line in (self.weights, self.legend.legend_handles[0]):
            line.set_color(COLOURS["red" if post else "blue"])
        self.stream.set_data(range(depth + 1), profile.stream.clamp(min=LEAST))
        self.alike.set_data(range(depth + 1), profile.alike)
        self.size.set_data(range(depth + 1), profile.size.clamp(min=LEAST))


class NextWords:
    """The likeliest next words of a right model, and what a changed one gives them."""

    def __init__(self, fig: Figure, n: int, place=(0.15, 0.14, 0.36, 0.74)):
        self.ax = fig.add_axes(place)
        self.right = self.ax.barh(range(n), [0] * n, height=0.8, color="#D9D9D9", label="right code")
        self.now = self.ax.barh(range(n), [0] * n, height=0.4, color=COLOURS["blue"], label="now")
        self.ax.set(xlim=(0, 1), ylim=(n - 0.4, -1.5), xlabel="probability of the next word", xticks=(0, 0.5, 1))
        self.ax.legend(loc="upper right", ncols=2, borderaxespad=0, handlelength=1.2, columnspacing=1)
        self.words = None

    def set(self, words, right, now) -> None:
        """words: n labels; right, now: (n,) probabilities."""
        for bars, values in ((self.right, right), (self.now, now)):
            for bar, value in zip(bars, values, strict=True):
                bar.set_width(float(value))
        if words != self.words:
            self.ax.set_yticks(range(len(words)), words, parse_math=False)
            self.words = words
