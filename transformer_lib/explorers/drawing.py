"""A small drawing made of rectangles, words and lines, which can be shown as SVG (with hover texts) and as pixels."""

import dataclasses
import functools
import html

import matplotlib
import numpy as np
from matplotlib.patches import FancyBboxPatch

from transformer_lib.plots.style import COLOURS, DPI, new_figure, pixels

FONT = 15  # CSS pixels: 11.25 pt
TITLE_HEIGHT = 30


def colour_at(name: str, share: float) -> str:
    """The colour #RRGGBB of matplotlib's map `name` at a share from 0 to 1."""
    return palette(name)[min(max(int(256 * float(share)), 0), 255)]


@functools.cache
def palette(name: str) -> list[str]:
    """A map's 256 colours: a picture asks for hundreds, and matplotlib takes its time with each."""
    return [matplotlib.colors.to_hex(colour) for colour in matplotlib.colormaps[name](range(256))]


@dataclasses.dataclass
class Drawing:
    """Width and height in CSS pixels (at most 800 wide), y downwards. Parts are drawn in the order they are added."""

    width: float
    height: float
    parts: list = dataclasses.field(default_factory=list)

    def rect(self, x, y, width, height, fill="#FFFFFF", stroke="none", hover: str = "", radius: float = 0) -> None:
        """A rectangle; `hover` is shown when the mouse rests on it, and read by screen readers."""
        self.parts.append(("rect", (x, y, width, height), fill, stroke, hover, radius))

    def text(self, x, y, words, size: float = FONT, anchor="middle", colour=COLOURS["black"], bold=False) -> None:
        """Words centred vertically on y; anchor: "start", "middle" or "end"."""
        self.parts.append(("text", (x, y), str(words), size, anchor, colour, bold))

    def line(self, x0, y0, x1, y1, colour=COLOURS["grey"], width: float = 1.5, opacity: float = 1.0, hover="") -> None:
        """A straight line."""
        self.parts.append(("line", (x0, y0, x1, y1), colour, width, opacity, hover))

    def svg(self, label: str, title: str = "") -> str:
        """The drawing as an SVG string on white ground; `label` is its description for screen readers."""
        space = TITLE_HEIGHT if title else 0
        head = f'<text x="8" y="21" font-size="17" font-weight="bold" fill="#222222">{html.escape(title)}</text>'
        inner = "".join(_SVG[kind](*values) for kind, *values in self.parts)
        size = f"{self.width:.4g} {self.height + space:.4g}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="{html.escape(label)}"'
            f' style="width: 100%; max-width: {self.width:.4g}px; height: auto; background: #FFFFFF"'
            ' font-family="DejaVu Sans, Verdana, sans-serif">'
            f'<rect width="100%" height="100%" fill="#FFFFFF"/>{head if title else ""}'
            f'<g transform="translate(0 {space})">{inner}</g></svg>'
        )

    def pixels(self, title: str = "") -> np.ndarray:
        """The same drawing as pixels (height, width, 3), by matplotlib."""
        space = TITLE_HEIGHT if title else 0
        fig = new_figure(self.width / DPI, (self.height + space) / DPI)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, self.width), ylim=(self.height, -space))
        ax.set_axis_off()
        if title:
            ax.text(8, -space / 2, title, va="center", size=17 * 72 / DPI, weight="bold", parse_math=False)
        for order, (kind, *values) in enumerate(self.parts):
            _PLOT[kind](ax, *values).set_zorder(order)  # as in SVG, what is added later lies on top
        return pixels(fig)


def _hover(words: str) -> str:
    return f"<title>{html.escape(words)}</title>" if words else ""


def _svg_rect(place, fill, stroke, hover, radius):
    x, y, width, height = place
    return (
        f'<rect x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}" rx="{radius:.4g}" fill="{fill}" '
        f'stroke="{stroke}">{_hover(hover)}</rect>'
    )


def _svg_text(place, words, size, anchor, colour, bold):
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{place[0]:.6g}" y="{place[1] + size * 0.35:.6g}" font-size="{size:.4g}" text-anchor="{anchor}" '
        f'fill="{colour}"{weight} pointer-events="none">{html.escape(words)}</text>'
    )


def _svg_line(ends, colour, width, opacity, hover):
    x0, y0, x1, y1 = ends
    return (
        f'<line x1="{x0:.6g}" y1="{y0:.6g}" x2="{x1:.6g}" y2="{y1:.6g}" stroke="{colour}" stroke-width="{width:.4g}" '
        f'stroke-opacity="{opacity:.3g}" stroke-linecap="round">{_hover(hover)}</line>'
    )


def _plot_rect(ax, place, fill, stroke, hover, radius):
    x, y, width, height = place
    style = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
    return ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=fill, ec=stroke, lw=0.75))


def _plot_text(ax, place, words, size, anchor, colour, bold):
    side = {"start": "left", "middle": "center", "end": "right"}[anchor]
    weight = "bold" if bold else "normal"
    style = {"ha": side, "va": "center", "color": colour, "weight": weight, "parse_math": False}
    return ax.text(*place, words, size=size * 72 / DPI, **style)


def _plot_line(ax, ends, colour, width, opacity, hover):
    x0, y0, x1, y1 = ends
    return ax.plot([x0, x1], [y0, y1], color=colour, lw=width * 72 / DPI, alpha=opacity, solid_capstyle="round")[0]


_SVG = {"rect": _svg_rect, "text": _svg_text, "line": _svg_line}
_PLOT = {"rect": _plot_rect, "text": _plot_text, "line": _plot_line}
