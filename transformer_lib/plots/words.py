"""A canvas that remembers the words it has drawn, for figures that are drawn again and again.

matplotlib lays out and rasterises every word each time it is drawn, about a millisecond for a label of ten letters, and
a picture has thirty labels of which most stay as they are. Here the masks of a word's letters are kept and laid on the
picture by the same function that matplotlib lays them with, so that the picture is the same to the byte.
"""

import functools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

REMEMBERED = 1024  # words per figure, of a few kB each


class WordCanvas(FigureCanvasAgg):
    """A figure's canvas whose renderer remembers words."""

    renderer = None

    def get_renderer(self):
        size = (*self.get_width_height(physical=True), self.figure.dpi)
        if self.renderer is None or (self.renderer.width, self.renderer.height, self.renderer.dpi) != size:
            self.renderer = WordRenderer(*size)
        return self.renderer


class WordRenderer(RendererAgg):
    """Draws as RendererAgg does; a word that was drawn at this place before is not rasterised again."""

    def __init__(self, width, height, dpi):
        super().__init__(width, height, dpi)
        self.masks = functools.lru_cache(maxsize=REMEMBERED)(self._masks)

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        if ismath:  # its roots and fractions have lines, which are no masks
            return super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)
        for mask, left, bottom, turned in self.masks(s, x, y, prop.copy(), angle, gc.get_antialiased()):
            self._renderer.draw_text_image(mask, left, bottom, turned, gc)

    def _masks(self, s, x, y, prop, angle, antialiased) -> list:
        """What `draw_text` hands to the C++ renderer for these words, in any colour: (mask, left, bottom, angle)."""
        recorder, gc = _Recorder(), self.new_gc()
        gc.set_antialiased(antialiased)
        real, self._renderer = self._renderer, recorder
        try:
            super().draw_text(gc, x, y, s, prop, angle)
        finally:
            self._renderer = real
        return _joined(recorder.masks)


class _Recorder:
    """Stands in for the C++ renderer and takes down the masks that it would have drawn."""

    def __init__(self):
        self.masks = []

    def draw_text_image(self, mask, left, bottom, angle, gc):
        mask = np.array(mask, dtype=np.uint8)  # a copy: what it was made from may draw on
        if mask.any():  # a space has no pixels, and is said to lie in the picture's corner
            self.masks.append((mask, left, bottom, angle))


def _joined(masks: list) -> list:
    """The same with as few masks as can be: letters that share no pixel are drawn together.

    Where the edges of two letters meet, the pixels must be blended twice, in the letters' order.
    """
    if len(masks) < 2 or any(angle for *_, angle in masks):
        return masks
    x0, y1 = min(left for _, left, _, _ in masks), max(bottom for _, _, bottom, _ in masks)
    x1 = max(left + mask.shape[1] for mask, left, _, _ in masks)
    y0 = min(bottom - mask.shape[0] for mask, _, bottom, _ in masks)
    planes = [np.zeros((y1 - y0, x1 - x0), np.uint8)]
    for mask, left, bottom, _ in masks:
        place = np.s_[bottom - mask.shape[0] - y0 : bottom - y0, left - x0 : left - x0 + mask.shape[1]]
        if (planes[-1][place].astype(bool) & mask.astype(bool)).any():
            planes.append(np.zeros_like(planes[0]))
        planes[-1][place] |= mask
    return [(plane, x0, y1, 0) for plane in planes]
