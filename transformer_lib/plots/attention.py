"""Pictures of scaled dot-product attention: projections, arrows, steps, a triangle of values, soft look-ups, maps."""

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from transformer_lib.plots.style import COLOURS, new_figure
from transformer_lib.plots.tokens import heat, readable

TOKEN_COLOURS = [COLOURS[name] for name in ("red", "blue", "green", "purple", "orange")]
BEHIND = {"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.75}  # keeps words readable over arrows


def projections(x, weights: dict, tokens, features) -> Figure:
    """X beside its products X W, one row per projection: {"Q": W_Q, …}; x: (T, d_model), each W: (d_model, d)."""
    fig = new_figure(8.0, 4.7)
    grid = fig.add_gridspec(len(weights), 3, width_ratios=(1.35, 0.75, 0.75))
    ax = fig.add_subplot(grid[:, 0])
    heat(ax, x, tokens, features, title=f"$X$  {np.shape(x)}", ylabel="token", xlabel="feature", limits=(-3, 3),
         diverging=True, numbers=".0f")  # fmt: skip
    for row, (name, w) in enumerate(weights.items()):
        left, right = fig.add_subplot(grid[row, 1]), fig.add_subplot(grid[row, 2])
        style = {"limits": (-3, 3), "diverging": True, "numbers": ".0f"}
        heat(left, w, features, title=f"$W_{name}$  {np.shape(w)}", **style)
        heat(
            right,
            np.asarray(x) @ np.asarray(w),
            tokens,
            title=f"${name} = X\\,W_{name}$  {(len(x), w.shape[1])}",
            **style,
        )
        left.set_xticks([])
        right.set_xticks([])
    return fig


def shadow(query, keys, token: str, tokens) -> Figure:
    """One query and all keys as arrows; a dot product is the key's shadow on the query's line, times its length."""
    query, keys = np.asarray(query, float), np.asarray(keys, float)
    fig = new_figure(8.0, 3.6)
    left, right = fig.subplots(1, 2, width_ratios=(1.25, 1))
    plane(left, 3.0, 2.7)
    along = query / np.linalg.norm(query)
    left.plot(*np.outer(along, (-3.5, 3.5)), color=COLOURS["grey"], lw=1, ls=(0, (4, 4)), zorder=0)
    arrows = Arrows(left, len(keys), hollow=True, colours=TOKEN_COLOURS, names=[f"k {t}" for t in tokens])
    arrows.set(keys)
    asked = Arrows(left, 1, colours=[COLOURS["black"]], names=[f"q {token}"])
    asked.set(query[None])
    for key, colour in zip(keys, TOKEN_COLOURS, strict=False):
        foot = along * (key @ along)
        left.plot(*zip(key, foot, strict=True), color=colour, lw=1.4, ls=":")
        left.plot(*foot, "o", color=colour, ms=8)
    left.set(
        title="query (black) and keys (hollow)",
        xlim=(-1.4, 3.4),
        ylim=(-0.8, 2.7),
        xticks=range(-1, 4),
        yticks=range(3),
    )
    scores = keys @ query
    bars = right.barh(range(len(keys)), scores, color=TOKEN_COLOURS[: len(keys)], height=0.6)
    right.bar_label(bars, [f"{s:.0f}" for s in scores], padding=4, weight="bold")
    right.set(yticks=range(len(keys)), yticklabels=tokens, xlabel="score = query · key", ylabel="key",
              title=f"scores of {token}", xlim=(min(0, scores.min()) * 1.2, scores.max() * 1.2))  # fmt: skip
    right.invert_yaxis()
    return fig


def steps(scores, scaled, weights, outputs, tokens) -> Figure:
    """Scores, scaled scores, weights and outputs side by side, with their shapes and every number."""
    fig = new_figure(8.0, 2.9)
    axes = fig.subplots(1, 4, width_ratios=(1, 1, 1, 0.8))
    parts = (
        (scores, "$Q\\,K^T$: scores", {"limits": (-4, 4), "diverging": True, "numbers": ".0f"}),
        (scaled, "÷ $\\sqrt{d_k}$", {"limits": (-4, 4), "diverging": True, "numbers": ".2f"}),
        (weights, "softmax: weights", {"limits": (0, 1), "numbers": ".2f"}),
        (outputs, "weights · $V$", {"limits": (-4, 4), "diverging": True, "numbers": ".2f"}),
    )
    for ax, (matrix, title, style) in zip(axes, parts, strict=True):
        heat(ax, matrix, title=f"{title}\n{tuple(np.shape(matrix))}", xlabel="key", **style)
        ax.set(xticks=range(len(tokens)), xticklabels=tokens, yticks=[])
    axes[0].set(yticks=range(len(tokens)), yticklabels=tokens, ylabel="query")
    axes[-1].set(xticks=range(np.shape(outputs)[1]), xticklabels=range(np.shape(outputs)[1]), xlabel="component")
    return fig


def sharpness(counts, largest_gap: float = 14.0) -> Figure:
    """The weight of the best key against how far its score is above the others (all equal), per number of keys."""
    fig = new_figure(8.0, 3.0)
    ax = fig.subplots()
    gap = np.linspace(0, largest_gap, 200)
    for count, colour in zip(counts, TOKEN_COLOURS, strict=False):
        weight = 1 / (1 + (count - 1) * np.exp(-gap))
        ax.plot(gap, weight, color=colour)
        at = np.argmin(np.abs(weight - 0.62))
        ax.text(gap[at] + 0.2, weight[at] - 0.07, f"{count:,} keys", color=colour, weight="bold")
    ax.axhline(1, color=COLOURS["grey"], lw=1, ls=(0, (4, 4)))
    ax.set(xlim=(0, largest_gap), ylim=(0, 1.06), xlabel="score of the best key minus the score of the others",
           ylabel="weight of the best key")  # fmt: skip
    return fig


def head_grid(weights, tokens) -> Figure:
    """Every head of every layer as a small map. weights: one (H, T, T) array per layer; keys not seen stay grey."""
    layers, heads = len(weights), len(weights[0])
    fig = new_figure(8.0, 0.9 + 2.0 * layers)
    axes = fig.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, row in enumerate(axes):
        for head, ax in enumerate(row):
            map_ = np.where(np.tri(len(tokens), dtype=bool), weights[layer][head], np.nan)  # (T, T)
            drawn = heat(ax, map_, limits=(0, 1), title=f"layer {layer}, head {head}", numbers=False)
            ax.set(xticks=range(len(tokens)), yticks=range(len(tokens)))
    names = [readable(token) for token in tokens]
    for ax in axes[-1]:
        ax.set_xticklabels(names, rotation=90, parse_math=False)
    for row in axes:
        row[0].set_yticklabels(names, parse_math=False)
    fig.supylabel("query: the token that looks", size=matplotlib.rcParams["axes.labelsize"])
    fig.supxlabel("key: the token that is looked at", size=matplotlib.rcParams["axes.labelsize"])
    fig.colorbar(drawn.image, ax=axes, label="weight", pad=0.02, aspect=30)
    return fig


def plane(ax: Axes, wide: float, high: float) -> None:
    """A plane with equal units, from −wide to wide and −high to high, its origin marked by two thin lines."""
    ax.set(xlim=(-wide, wide), ylim=(-high, high), aspect="equal", xlabel="component 0", ylabel="component 1")
    ax.spines[:].set_visible(False)
    ax.axhline(0, color="#CCCCCC", lw=1, zorder=-1)
    ax.axvline(0, color="#CCCCCC", lw=1, zorder=-1)


class Arrows:
    """Arrows from the origin with a name at each tip; `set(vectors)` turns them in place. Hollow ones mean keys."""

    def __init__(self, ax: Axes, n: int, *, colours, names, hollow: bool = False):
        colours = list(colours)[:n]
        face = {"facecolor": "white", "edgecolor": colours, "linewidth": 1.6} if hollow else {"color": colours}
        zeros = np.zeros(n)
        self.quiver = ax.quiver(zeros, zeros, zeros, zeros, angles="xy", scale_units="xy", scale=1, width=0.014,
                                zorder=2 if hollow else 3, **face)  # fmt: skip
        self.names = [
            ax.text(0, 0, name, color=colour, weight="bold", ha="center", va="center", bbox=BEHIND, zorder=5)
            for name, colour in zip(names, colours, strict=True)
        ]

    def set(self, vectors) -> None:
        """vectors: (n, 2)."""
        self.quiver.set_UVC(*np.asarray(vectors, float).T)
        for (x, y), text in zip(vectors, self.names, strict=True):
            length = math.hypot(x, y) or 1.0
            text.set_position((x + 0.25 * x / length, y + 0.25 * y / length))
            text.set_ha("left" if x > 0.3 * length else "right" if x < -0.3 * length else "center")


class Hull:
    """The triangle (or polygon) of the value vectors; each output lies inside, tied to the values it is made of."""

    def __init__(self, ax: Axes, values, tokens):
        self.values = np.asarray(values, float)
        colours = TOKEN_COLOURS[: len(tokens)]
        ax.fill(*self.values.T, color="#EFEFEF", ec=COLOURS["grey"], lw=1.2, zorder=0)
        centre = self.values.mean(0)
        for value, token, colour in zip(self.values, tokens, colours, strict=True):
            ax.plot(*value, "s", color=colour, ms=9, zorder=3)
            right, up = value > centre
            ax.annotate(f"value of {token}", value, (0, 11 if up else -13), textcoords="offset points", color=colour,
                        weight="bold", ha="right" if right else "left", va="center")  # fmt: skip
        ax.spines[:].set_visible(False)
        ax.grid(True)
        ax.set_axisbelow(True)
        self.ties = LineCollection([], zorder=1)
        ax.add_collection(self.ties)
        self.dots = ax.scatter(*np.zeros((2, len(tokens))), s=110, c=colours, ec="white", lw=1.5, zorder=4)
        self.colours = [colour for colour in colours for _ in tokens]

    def set(self, weights) -> None:
        """weights: (T, T); a tie is as thick as its weight."""
        outputs = np.asarray(weights) @ self.values  # (T, 2)
        self.dots.set_offsets(outputs)
        self.ties.set_segments([(output, value) for output in outputs for value in self.values])
        self.ties.set(linewidths=5 * np.ravel(weights), colors=self.colours, alpha=0.45)


class FourPanels:
    """Queries and keys as arrows, their scores, the weights, and the outputs among the values, for a few tokens."""

    def __init__(self, fig: Figure, values, tokens):
        grid = fig.subplots(2, 2, width_ratios=(1.25, 1), height_ratios=(1.3, 1))
        (arrows, scores), (hull, weights) = grid
        plane(arrows, 3.9, 2.9)
        arrows.set(title="1  queries (filled) and keys (hollow)", xlabel="", xticks=range(-3, 4), yticks=range(-2, 3))
        named = {word: [f"{word} {token}" for token in tokens] for word in "qk"}
        self.keys = Arrows(arrows, len(tokens), hollow=True, colours=TOKEN_COLOURS, names=named["k"])
        self.queries = Arrows(arrows, len(tokens), colours=TOKEN_COLOURS, names=named["q"])
        style = {"row_labels": tokens, "col_labels": tokens, "xlabel": "key", "ylabel": "query", "numbers": ".2f"}
        blank = np.zeros((len(tokens), len(tokens)))
        self.scores = heat(scores, blank, title="2  scores ÷ $\\sqrt{d_k}$", limits=(-6, 6), diverging=True, **style)
        self.weights = heat(weights, blank, title="3  weights: softmax by row", limits=(0, 1), **style)
        self.hull = Hull(hull, values, tokens)
        hull.set(title="4  each token's output is a mix of the values", xlabel="component 0", ylabel="component 1")
        hull.margins(0.12, 0.2)

    def set(self, queries, keys, scores, weights) -> None:
        """queries, keys: (T, 2); scores, weights: (T, T)."""
        self.queries.set(queries)
        self.keys.set(keys)
        self.scores.set(scores)
        self.weights.set(weights)
        self.hull.set(weights)


class LookUp:
    """A wheel of keys with a query, the weights of the entries, and the answer for every direction of the query."""

    def __init__(self, fig: Figure, names, keys, around, nearest):
        grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.35))
        wheel, bars, curve = (fig.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1]))
        wheel.set(xlim=(-1.75, 1.75), ylim=(-1.4, 1.4), aspect="equal", title="keys (hollow) and query (black)")
        wheel.set_axis_off()
        wheel.add_patch(Circle((0, 0), 1, fill=False, ec="#CCCCCC"))
        colours = TOKEN_COLOURS[: len(names)]
        Arrows(wheel, len(names), hollow=True, colours=colours, names=names).set(keys)
        self.query = Arrows(wheel, 1, colours=[COLOURS["black"]], names=[""])
        self.bars = bars.bar(names, [0] * len(names), color=colours)
        bars.set(ylim=(0, 1.12), ylabel="weight", title="weights of the entries")
        curve.plot(around, nearest, color=COLOURS["red"], ls=":", lw=2.4, label="hard (nearest key)")
        (self.curve,) = curve.plot(around, nearest, color=COLOURS["black"], label="soft")
        (self.dot,) = curve.plot([], [], "o", color=COLOURS["black"], ms=9)
        curve.set(xlim=(0, 360), ylim=(min(nearest) - 2, max(nearest) + 8), xticks=[0, 90, 180, 270, 360],
                  ylabel="answer (°C)", xlabel="direction of the query (° from north)",
                  title="what the look-up returns")  # fmt: skip
        curve.legend(loc="upper left", ncols=2, borderaxespad=0.2)

    def set(self, query, weights, answers, direction: float, answer: float) -> None:
        """query: (2,); weights: one per entry; answers: for every direction of `around`."""
        self.query.set([query])
        for bar, weight in zip(self.bars, weights, strict=True):
            bar.set_height(weight)
        self.curve.set_ydata(answers)
        self.dot.set_data([direction], [answer])
