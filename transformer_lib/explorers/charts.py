"""A line chart inside a `Drawing`, for explorers whose picture is part boxes and part curves."""

import dataclasses
import itertools
import math

from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS


@dataclasses.dataclass(frozen=True)
class Chart:
    """Axes at (x, y) of a drawing, in pixels. x_limits, y_limits: the data's range; log: both axes are logarithmic."""

    drawing: Drawing
    x: float
    y: float
    width: float
    height: float
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    log: bool = False

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Data to pixels; what lies outside is moved to the edge."""
        across = self.x + self.width * self.share(x, *self.x_limits)
        return across, self.y + self.height * (1 - self.share(y, *self.y_limits))

    def share(self, value: float, low: float, high: float) -> float:
        if self.log:
            value, low, high = (math.log(max(v, 1e-300)) for v in (value, low, high))
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def frame(self, x_ticks: dict, y_ticks: dict, x_label: str, y_label: str) -> None:
        """The axes. x_ticks, y_ticks: {value: words}; the y label stands above the axis."""
        left, right, top, low = self.x, self.x + self.width, self.y, self.y + self.height
        for value, words in y_ticks.items():
            y = self.place(self.x_limits[0], value)[1]
            self.drawing.line(left, y, right, y, "#E2E2E2", 1)
            self.drawing.text(left - 8, y, words, anchor="end", colour="#444444")
        for value, words in x_ticks.items():
            x = self.place(value, self.y_limits[0])[0]
            self.drawing.line(x, low, x, low + 5, COLOURS["grey"], 1)
            self.drawing.text(x, low + 16, words, colour="#444444")
        self.drawing.line(left, top, left, low, COLOURS["grey"], 1.2)
        self.drawing.line(left, low, right, low, COLOURS["grey"], 1.2)
        self.drawing.text((left + right) / 2, low + 38, x_label)
        self.drawing.text(left, top - 16, y_label, anchor="start", bold=True)

    def curve(self, points, colour: str, width: float = 2.0, hover: str = "") -> None:
        """Straight pieces between the points, [(x, y), …]."""
        places = [self.place(*point) for point in points]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            self.drawing.line(x0, y0, x1, y1, colour, width, hover=hover)

    def dot(self, x: float, y: float, colour: str, hover: str = "", size: float = 9) -> None:
        across, up = self.place(x, y)
        self.drawing.rect(across - size / 2, up - size / 2, size, size, colour, hover=hover, radius=size / 2)
