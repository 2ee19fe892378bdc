"""Panels of the position explorers of notebook 01: made once, then changed in place by `set`."""

import numpy as np
from matplotlib.figure import Figure

from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import heat
from transformer_lib.plots.tokens_lesson import dial

QUERY, KEY = COLOURS["blue"], COLOURS["orange"]
TURN = np.linspace(0, 1, 60)


class Clock:
    """One dial with the hands of a query and a key, their ghosts before both moved, and the angle between them."""

    def __init__(self, ax):
        dial(ax)
        self.title = ax.set_title("pair\nper token", loc="center")  # room for the words
        (self.wedge,) = ax.fill([0, 0, 0], [0, 0, 0], color="#DDDDDD", zorder=0)
        self.ghosts = [ax.plot([], [], color=c, lw=1.4, ls=(0, (2, 2)), alpha=0.8)[0] for c in (QUERY, KEY)]
        self.hands = [
            ax.plot([], [], color=c, lw=w, solid_capstyle="round")[0] for c, w in ((KEY, 7), (QUERY, 3))
        ]  # the key below: where both point the same way its edges still show
        self.words = ax.text(0, -1.38, "", ha="center", va="center")
        ax.set_ylim(-1.55, 1.18)

    def set(self, query, key, old_query, old_key, title: str) -> None:
        """Each (2,): the hands now, and before both moved."""
        self.title.set_text(title)
        for line, tip in zip((*self.hands, *self.ghosts), (key, query, old_query, old_key), strict=True):
            line.set_data([0, tip[0]], [0, tip[1]])
        start = np.arctan2(key[1], key[0])
        between = np.angle(np.exp(1j * (np.arctan2(query[1], query[0]) - start)))
        rim = 0.45 * np.exp(1j * (start + between * TURN))
        self.wedge.set_xy(np.column_stack((np.r_[0, rim.real], np.r_[0, rim.imag])))
        self.words.set_text(f"between: {np.degrees(between):+.0f}°".replace("-", "−"))


class RopeClock:
    """Four dials from fast to slow, the score against the distance, and what each dial adds to it."""

    REACH = 64

    def __init__(self, fig: Figure, n_pairs: int):
        grid = fig.add_gridspec(2, 12, height_ratios=(1, 1.05))
        self.clocks = [Clock(fig.add_subplot(grid[0, 3 * i : 3 * i + 3])) for i in range(n_pairs)]
        curve, bars = fig.add_subplot(grid[1, :7]), fig.add_subplot(grid[1, 7:])
        self.distances = np.arange(-2 * self.REACH, 2 * self.REACH + 1)
        (self.curve,) = curve.plot(self.distances, 0 * self.distances, color=COLOURS["black"], lw=1.4)
        (self.dot,) = curve.plot([], [], "o", color=COLOURS["red"], ms=10)
        curve.axhline(0, color="#CCCCCC", lw=1, zorder=0)
        curve.set(xlim=(-2 * self.REACH, 2 * self.REACH), ylim=(-4.4, 4.6), xlabel="distance m − n (tokens)",
                  ylabel="score q · k", title="every distance, one score")  # fmt: skip
        self.bars = bars.bar(range(n_pairs + 1), [0] * (n_pairs + 1), color=["#888888"] * n_pairs + [COLOURS["red"]])
        bars.axhline(0, color="#CCCCCC", lw=1, zorder=0)
        bars.set(ylim=(-4.4, 4.6), title="what each pair adds", yticks=[-4, -2, 0, 2, 4])
        bars.set_xticks(range(n_pairs + 1), [*map(str, range(n_pairs)), "sum"])
        bars.set_xlabel("pair")

    def set(self, q, k, old_q, old_k, degrees, scores, distance: int) -> None:
        """q, k and where they were: (pairs, 2); degrees: how far each pair turns per token; scores: per distance."""
        for i, (clock, *tips) in enumerate(zip(self.clocks, q, k, old_q, old_k, strict=True)):
            clock.set(*tips, title=f"pair {i}\n{degrees[i]:.2g}° per token")
        parts = (q * k).sum(axis=1)
        for bar, height in zip(self.bars, [*parts, parts.sum()], strict=True):
            bar.set_height(height)
        self.curve.set_ydata(scores)
        self.dot.set_data([distance], [parts.sum()])


class SinusoidLab:
    """The table of sinusoids, one pair of its columns as waves, and one row's product with every other row."""

    def __init__(self, fig: Figure, n_positions: int, d_model: int):
        grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.25))
        table, waves, products = fig.add_subplot(grid[:, 0]), fig.add_subplot(grid[0, 1]), fig.add_subplot(grid[1, 1])
        self.map = heat(table, np.zeros((n_positions, d_model)), limits=(-1, 1), diverging=True, numbers=False,
                        title="the table", xlabel="component", ylabel="position")  # fmt: skip
        self.row = table.axhline(0, color=COLOURS["black"], lw=2)
        (self.pair,) = table.plot([], [], color=COLOURS["red"], lw=2)
        table.set(xlim=(-0.5, d_model - 0.5), ylim=(n_positions - 0.5, -0.5))
        self.at = np.arange(n_positions)
        zeros = 0.0 * self.at
        (self.sine,) = waves.plot(self.at, zeros, color=COLOURS["red"], label="sine")
        (self.cosine,) = waves.plot(self.at, zeros, color=COLOURS["purple"], label="cosine")
        self.here = [ax.axvline(0, color=COLOURS["black"], lw=1.6) for ax in (waves, products)]
        waves.set(ylim=(-1.15, 1.6), xlim=(0, n_positions - 1), title="the chosen pair", ylabel="value")
        waves.legend(loc="upper right", ncols=2, borderaxespad=0.1)
        (self.products,) = products.plot(self.at, zeros, color=COLOURS["blue"])
        products.set(ylim=(-d_model / 4, d_model / 2 * 1.1), xlim=(0, n_positions - 1), xlabel="the other position",
                     ylabel="product", title="this row · every row")  # fmt: skip

    def set(self, table, position: int, pair: int) -> None:
        """table: (T, d)."""
        self.map.set(table)
        self.row.set_ydata([position] * 2)
        left, right, top, bottom = 2 * pair - 0.5, 2 * pair + 1.5, -0.5, len(table) - 0.5
        self.pair.set_data([left, right, right, left, left], [top, top, bottom, bottom, top])
        self.sine.set_ydata(table[:, 2 * pair])
        self.cosine.set_ydata(table[:, 2 * pair + 1])
        self.products.set_ydata(table @ table[position])
        for line in self.here:
            line.set_xdata([position] * 2)
