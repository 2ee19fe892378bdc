"""Draw a figure again quickly: what does not move is kept as a background, what moves is drawn over it.

Most of a figure's drawing time goes into axes, ticks and their labels. They are drawn once. Everything else in the axes
(lines, bars, images, texts, titles, legends) is marked as animated: matplotlib then no longer calls the figure stale
when such an artist changes, so a stale figure means that the background itself has changed and must be drawn again.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, BboxImage
from matplotlib.spines import Spine
from PIL import Image

from transformer_lib.plots.words import WordCanvas


class Layers:
    """A laid-out figure, split into a background and what moves. `draw()` returns the pixels (height, width, 3)."""

    def __init__(self, fig: Figure):
        self.fig = fig
        WordCanvas(fig)
        self.moving = [(ax, artist) for ax in fig.axes for artist in _moving(ax)]
        self.moving.sort(key=lambda pair: (pair[0].get_zorder(), pair[1].get_zorder()))
        for _, artist in self.moving:
            for part in artist.findobj():  # a legend's lines and words too
                part.set_animated(True)
        self.background = None

    def draw(self) -> np.ndarray:
        """Draw what moves; the background only when it has changed."""
        if self.background is None or self.fig.stale:
            self._draw_background()
        self.fig.canvas.restore_region(self.background)
        for ax, artist in self.moving:
            ax.draw_artist(artist)
        self.fig.stale = False  # a legend calls itself changed while it is drawn
        shown = np.asarray(self.fig.canvas.buffer_rgba())  # (height, width, 4), not copied
        rgb = Image.fromarray(shown).tobytes("raw", "RGB")  # several times faster than a slice or `convert`
        return np.frombuffer(rgb, np.uint8).reshape(*shown.shape[:2], 3)

    def _draw_background(self) -> None:
        images = [a for _, a in self.moving if isinstance(a, AxesImage | BboxImage) and a.get_visible()]
        for image in images:  # matplotlib leaves out what is animated, but not images
            image.set_visible(False)
        self.fig.canvas.draw()
        for image in images:
            image.set_visible(True)
        self.background = self.fig.canvas.copy_from_bbox(self.fig.bbox)
        self.fig.stale = False


def _moving(ax: Axes) -> list:
    if hasattr(ax, "_colorbar"):  # a colour bar tells matplotlib itself when it changes
        return []
    return [a for a in ax.get_children() if not isinstance(a, Axis | Spine | Axes) and a is not ax.patch]
