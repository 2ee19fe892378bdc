"""A matrix as coloured cells that are drawn again quickly: which cell a pixel shows is asked of matplotlib once."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

MOST = 255  # rows and columns: a cell's number must fit a colour of 8 bits


class CellImage(AxesImage):
    """Looks as an image of `ax.imshow` to the byte, without its work on every pixel: interpolation, limits, colours.

    To learn which cell is seen where, matplotlib draws an image once whose colours are the numbers of its rows and
    columns. The answer holds as long as neither the number of cells nor the image's place changes.
    """

    asked = None  # (shape, place) that `cells` and `corner` hold for

    def make_image(self, renderer, magnification=1.0, unsampled=False):
        matrix = self.get_array()  # (rows, columns)
        if unsampled or magnification != 1 or max(matrix.shape) > MOST:
            return super().make_image(renderer, magnification, unsampled)
        ends = self.get_transform().transform(np.reshape(self.get_extent(), (2, 2)).T)
        asked = (matrix.shape, *ends.ravel(), *self.axes.bbox.extents)
        if asked != self.asked:
            self._ask(matrix.shape, renderer)
            self.asked = asked
        if self.cells is None:  # out of sight
            return None, *self.corner
        colours = self.to_rgba(matrix, bytes=True).reshape(-1, 4)
        colours = np.append(colours, np.zeros((1, 4), np.uint8), axis=0).view(np.uint32)[:, 0]  # (cells + 1,)
        return colours[self.cells, None].view(np.uint8), *self.corner

    def _ask(self, shape: tuple[int, int], renderer) -> None:
        """Find `cells`, (height, width): the flat index of the cell that a pixel shows, or their number for none."""
        numbers = np.ones((*shape, 4), np.float32)
        numbers[..., 0], numbers[..., 1] = (np.indices(shape) + 0.5) / 255  # truncated to 8 bits: the index
        image = AxesImage(self.axes, interpolation="nearest", origin=self.origin, extent=self.get_extent())
        image.set_data(numbers)
        image.set_transform(self.get_transform())
        image.set_clip_box(self.get_clip_box())
        found, *self.corner = image.make_image(renderer)
        if found is None:
            self.cells = None
            return
        cell = np.ravel_multi_index((found[..., 0], found[..., 1]), shape, mode="clip")
        self.cells = np.where(found[..., 3], cell, shape[0] * shape[1]).astype(np.int32)


def cell_image(ax: Axes, matrix, *, cmap, limits: tuple[float, float]) -> CellImage:
    """What `ax.imshow(matrix, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto")` does, with a `CellImage`."""
    ax.set_aspect("auto")
    image = CellImage(ax, cmap=cmap, norm=Normalize(*limits), interpolation="nearest")
    image.set_data(matrix)
    image.set_clip_path(ax.patch)
    image.set_extent(image.get_extent())
    ax.add_image(image)
    return image
