"""Labels and maps of tokens: readable pieces on the axes, a matrix as colours with its numbers."""

import functools
import itertools
import unicodedata

import matplotlib
import numpy as np
from matplotlib import font_manager, ft2font
from matplotlib.axes import Axes

from transformer_lib.plots.cells import cell_image
from transformer_lib.plots.style import DIVERGING, SEQUENTIAL

LONGEST_LABEL = 12  # letters; a longer piece is shortened with …
SPACE_MARKS = {"▁": "·", "Ġ": "·", " ": "·", "\n": "↵", "Ċ": "↵", "\t": "⇥", "<0x0A>": "↵"}


@functools.cache
def _glyphs() -> frozenset[int]:
    """The characters that the plots' font can draw."""
    path = font_manager.findfont(matplotlib.rcParams["font.family"][0])
    return frozenset(ft2font.FT2Font(path).get_charmap())


def _visible(letter: str) -> str:
    if letter in SPACE_MARKS:
        return SPACE_MARKS[letter]
    if unicodedata.category(letter)[0] == "C" or ord(letter) not in _glyphs():
        return f"U+{ord(letter):04X}"
    return letter


def readable(piece: str, longest: int = LONGEST_LABEL) -> str:
    """A token as it can be read on an axis: spaces as ·, newlines as ↵, what the font lacks as U+…, long ones cut."""
    text = SPACE_MARKS.get(piece) or "".join(map(_visible, piece[: longest + 1]))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _share(ax: Axes, axis: str) -> float:
    """About how many points long the axis is: constrained layout will leave some three quarters of its place."""
    box = ax.get_position()
    inches = ax.figure.get_figwidth() * box.width if axis == "x" else ax.figure.get_figheight() * box.height
    return inches * 72 * 0.85


def token_ticks(ax: Axes, tokens, axis: str = "x", top: bool = False) -> None:
    """Label the axis with tokens, one tick each: turned upright when wide, thinned out when there is no room."""
    labels = [readable(str(token)) for token in tokens]
    size = matplotlib.rcParams[f"{axis}tick.labelsize"]
    room = _share(ax, axis) / max(len(labels), 1)  # points per tick
    step = max(1, int(np.ceil(size * 1.15 / room)))
    places, texts = list(range(0, len(labels), step)), labels[::step]
    if axis == "y":
        ax.set_yticks(places, texts, parse_math=False)
        return
    upright = max(map(len, texts), default=0) * size * 0.62 + size * 0.6 > room * step
    ax.set_xticks(places, texts, parse_math=False, rotation=90 if upright else 0)
    if top:
        ax.xaxis.tick_top()
        ax.xaxis.set_label_position("top")


def _numbers_fit(ax: Axes, matrix: np.ndarray) -> bool:
    """Whether each cell has room for a number with two decimals."""
    size, letters = matplotlib.rcParams["font.size"], 6 if (matrix < 0).any() else 5
    wide = _share(ax, "x") / matrix.shape[1] > letters * size * 0.62
    return bool(wide and _share(ax, "y") / matrix.shape[0] > size * 1.3)


class Heat:
    """A matrix drawn on axes. `set(matrix)` changes colours and numbers in place, for explorers."""

    def __init__(self, ax: Axes, matrix, *, limits, cmap, numbers):
        matrix = np.asarray(matrix, dtype=float)
        self.format = numbers
        self.cmap = matplotlib.colormaps[cmap].with_extremes(bad="#E4E4E4")  # NaN: an empty cell
        self.image = cell_image(ax, matrix, cmap=self.cmap, limits=limits)
        rows, columns = matrix.shape
        self.texts = [
            [ax.text(j, i, "", ha="center", va="center") for j in range(columns)] for i in range(rows) if numbers
        ]
        self.matrix = None
        self.set(matrix)

    def set(self, matrix) -> None:
        """Show another matrix of the same shape (NaN is drawn as an empty grey cell)."""
        matrix = np.asarray(matrix, dtype=float)
        if self.matrix is not None and np.array_equal(matrix, self.matrix, equal_nan=True):
            return  # what does not change need not be drawn again
        self.matrix = matrix.copy()
        self.image.set_data(matrix)
        if not self.texts:
            return
        for value, ink, text in zip(matrix.ravel(), self._inks(matrix).ravel(), itertools.chain(*self.texts)):
            shown = "" if np.isnan(value) else f"{value:{self.format}}".replace("-", "−")
            text.set(text=shown, color=ink)

    def _inks(self, matrix: np.ndarray) -> np.ndarray:
        """Black or white, whichever stands out more from each cell's colour."""
        light = self.cmap(self.image.norm(matrix))[..., :3] @ (0.299, 0.587, 0.114)
        return np.where(light < 0.5, "white", "#111111")


def heat(
    ax: Axes,
    matrix,
    row_labels=None,
    col_labels=None,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    limits: tuple[float, float] | None = None,
    diverging: bool = False,
    numbers: str | bool | None = None,
    colorbar: str | None = None,
) -> Heat:
    """Draw a matrix (rows, columns) as colours; NaN cells stay grey. Returns a `Heat`.

    limits: the colours' ends; by default 0 (or the smallest value) to the largest, or symmetric if `diverging`.
    numbers: a format such as ".2f" for a number in each cell; None writes two decimals where the cells have room.
    colorbar: the quantity and unit to label a colour bar with; None draws no bar.
    """
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2:
        raise ValueError(f"heat draws a matrix; got an array of shape {matrix.shape}")
    if limits is None:
        finite = matrix[np.isfinite(matrix)]
        largest = float(np.abs(finite).max()) if finite.size else 1.0
        limits = (-largest, largest) if diverging else (min(0.0, float(finite.min(initial=0))), largest or 1.0)
    if numbers is None:
        numbers = _numbers_fit(ax, matrix)
    if numbers is True:
        numbers = ".2f"
    drawn = Heat(ax, matrix, limits=limits, cmap=DIVERGING if diverging else SEQUENTIAL, numbers=numbers)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if col_labels is not None:
        token_ticks(ax, col_labels, "x")
    if row_labels is not None:
        token_ticks(ax, row_labels, "y")
    if colorbar is not None:
        ax.figure.colorbar(drawn.image, ax=ax, label=colorbar, pad=0.02)
    return drawn
