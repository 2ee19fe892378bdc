"""Draw a figure again quickly: what does not move is kept as a background, what moves is drawn over it.

Most of a figure's drawing time goes into axes, ticks and their labels. They are drawn once. Everything else in the axes
(lines, bars, images, texts, titles, legends) is marked as animated: matplotlib then no longer calls the figure stale
when such an artist changes, so a stale figure means that the background itself has changed and must be drawn again.
"""

import itertools

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, BboxImage
from matplotlib.spines import Spine
from PIL import Image

from transformer_lib.plots.words import WordCanvas


class Layers:
    """A laid-out figure, split into a background and what moves. `draw()` returns the pixels (height, width, 3).

    What moves forms groups that never overlap: the artists of each axes, and each title. Those groups that did not
    change at the last step are kept with the background, since the next step of the same control will leave them too.
    """

    def __init__(self, fig: Figure):
        self.fig = fig
        WordCanvas(fig)
        self.groups = [group for ax in sorted(fig.axes, key=Axes.get_zorder) for group in _groups(ax)]
        self.parts = [[part for artist in group for part in artist.findobj()] for group in self.groups]
        for part in itertools.chain(*self.parts):  # a legend's lines and words too
            part.set_animated(True)
        self.background = self.quiet = self.with_quiet = None

    def draw(self) -> np.ndarray:
        """Draw what has changed; the quiet groups when there are others than before; the background when it changed."""
        canvas = self.fig.canvas
        quiet = [not any(part.stale for part in parts) for parts in self.parts]
        if self.background is None or self.fig.stale:
            self._draw_background()
            self.quiet = None
        if quiet != self.quiet:
            canvas.restore_region(self.background)
            self._draw_groups(quiet)
            self.quiet, self.with_quiet = quiet, canvas.copy_from_bbox(self.fig.bbox)
        canvas.restore_region(self.with_quiet)
        self._draw_groups([not still for still in quiet])
        shown = np.asarray(canvas.buffer_rgba())  # (height, width, 4), not copied
        rgb = Image.fromarray(shown).tobytes("raw", "RGB")  # several times faster than a slice or `convert`
        return np.frombuffer(rgb, np.uint8).reshape(*shown.shape[:2], 3)

    def _draw_groups(self, chosen: list[bool]) -> None:
        for artist in itertools.chain(*itertools.compress(self.groups, chosen)):
            artist.axes.draw_artist(artist)
        for part in itertools.chain(*itertools.compress(self.parts, chosen)):
            part.stale = False  # a legend calls itself changed while it is drawn
        self.fig.stale = False

    def _draw_background(self) -> None:
        moving = itertools.chain(*self.groups)
        images = [a for a in moving if isinstance(a, AxesImage | BboxImage) and a.get_visible()]
        for image in images:  # matplotlib leaves out what is animated, but not images
            image.set_visible(False)
        self.fig.canvas.draw()
        for image in images:
            image.set_visible(True)
        self.background = self.fig.canvas.copy_from_bbox(self.fig.bbox)
        self.fig.stale = False


def _groups(ax: Axes) -> list[list]:
    """What moves in these axes: each title alone, then all within the axes, in the order in which it is drawn."""
    if hasattr(ax, "_colorbar"):  # a colour bar tells matplotlib itself when it changes
        return []
    titles = ax.title, ax._left_title, ax._right_title
    inside = [a for a in ax.get_children() if not isinstance(a, Axis | Spine | Axes) and a not in (ax.patch, *titles)]
    return [*([title] for title in titles), sorted(inside, key=Artist.get_zorder)]
