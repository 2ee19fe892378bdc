"""The one plot style of the course: colours, fonts, and how a figure becomes a picture in a notebook.

Colours are those of Okabe and Ito (2008), which readers with any common colour blindness can tell apart. Figures are
made without pyplot, so no figure stays alive behind the notebook's back. A picture brings its own opaque white
background and is therefore as readable in JupyterLab's dark theme as in the light one.
"""

import base64
import io
import os
import struct
import textwrap

import matplotlib
import numpy as np
from isal import isal_zlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

COLOURS = {
    "black": "#222222",
    "grey": "#767676",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "red": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
}
CYCLE = [COLOURS[name] for name in ("blue", "red", "green", "orange", "purple", "sky", "black")]
SEQUENTIAL = "cividis"  # for quantities from nothing to much: weights, probabilities
DIVERGING = "RdBu_r"  # for signed quantities: always with limits symmetric around 0

# Words in the page (not in a picture) take the theme's own colour and size.
TEXT = (
    "color: var(--jp-ui-font-color1, inherit); font-size: var(--jp-content-font-size1, 14px); "
    "line-height: 1.5; max-width: 800px"
)

DPI = 100  # CSS pixels per inch: a figure 8 in wide is 800 pixels wide on the page
DENSITY = 2  # picture pixels per CSS pixel, for sharp text on today's screens
FONT_SIZE = 11.5
PROJECTOR_FACTOR = 1.3
PROJECTOR_SWITCH = "TRANSFORMER_PROJECTOR"  # environment variable: "1" starts with the larger fonts
STATIC_SWITCH = "EXPLORER_STATIC"  # environment variable: set while notebooks are executed to be stored


def is_static() -> bool:
    """True while `make notebooks` executes a notebook: pictures only, no live widgets."""
    return bool(os.environ.get(STATIC_SWITCH))


def font_scale() -> float:
    """The factor on every font size of the course: 1, or larger when a projector is switched on."""
    return matplotlib.rcParams["font.size"] / FONT_SIZE


def projector(on: bool = True) -> None:
    """Draw all following figures with larger fonts and thicker lines, for a room; `projector(False)` goes back."""
    factor = PROJECTOR_FACTOR if on else 1.0
    size = FONT_SIZE * factor
    matplotlib.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": size,
            "axes.titlesize": size,
            "axes.labelsize": size,
            "xtick.labelsize": size * 0.96,
            "ytick.labelsize": size * 0.96,
            "legend.fontsize": size * 0.96,
            "figure.titlesize": size * 1.13,
            "figure.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": COLOURS["grey"],
            "axes.prop_cycle": matplotlib.cycler(color=CYCLE),
            "axes.grid": False,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.8,
            "lines.linewidth": 2.0 * factor,
            "legend.frameon": False,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "image.cmap": SEQUENTIAL,
            "image.interpolation": "nearest",
            "text.color": COLOURS["black"],
            "axes.labelcolor": COLOURS["black"],
            "axes.titlecolor": COLOURS["black"],
            "xtick.color": "#444444",
            "ytick.color": "#444444",
            "figure.constrained_layout.h_pad": 0.06,
            "figure.constrained_layout.w_pad": 0.06,
        }
    )


projector(os.environ.get(PROJECTOR_SWITCH, "") == "1")


def new_figure(width: float = 8.0, height: float = 3.0) -> Figure:
    """An empty figure (inches) in the course's style, with its own canvas; draw with `fig.subplots(...)`.

    Wider than 8 in would shrink on a page 900 pixels wide, and its fonts with it, so that is refused.
    """
    if not 0 < width <= 8.0:
        raise ValueError(f"a figure is at most 8 in wide, so that it fits a page of 900 pixels; got {width}")
    fig = Figure(figsize=(width, height), dpi=DPI * DENSITY, layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def pixels(fig: Figure) -> np.ndarray:
    """Draw the figure and return its pixels, (height, width, 3) uint8."""
    fig.canvas.draw()
    return np.asarray(fig.canvas.buffer_rgba())[..., :3]


def png(image: np.ndarray, small: bool = False) -> bytes:
    """Encode pixels (height, width, 3) as PNG: quickly, or `small` (256 colours, strongest compression) for files."""
    if not small:
        return _quick_png(image)
    stream = io.BytesIO()
    picture = Image.fromarray(image).quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(stream, "png", compress_level=9)
    return stream.getvalue()


def _quick_png(image: np.ndarray) -> bytes:
    """PNG with one filter for all rows, each minus the one above, deflated by ISA-L in a tenth of zlib's time."""
    height, width = image.shape[:2]
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2  # the filter "up" of the PNG specification, section 9.2
    flat = np.ascontiguousarray(image).reshape(height, 3 * width)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB
    parts = ((b"IHDR", head), (b"IDAT", isal_zlib.compress(rows)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(data)) + kind + data + _checksum(kind + data) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", isal_zlib.crc32(data))


def png_bundle(image: np.ndarray, *, kind: str, text: str, alt: str, name: str):
    """The data and metadata of a notebook output: the picture, shown at half its pixels, its alt text and its words.

    kind ("figure" or "explorer") and name travel along unseen, for `make notebooks` and the tests.
    """
    data = {"text/plain": text, "image/png": base64.b64encode(png(image, small=is_static())).decode()}
    size = {"width": image.shape[1] // DENSITY, "height": image.shape[0] // DENSITY}
    return data, {"image/png": {**size, "alt": alt, "kind": kind, "name": name}}


class Picture:
    """A finished figure as a cell's result: a PNG with alt text where pictures can be shown, its words elsewhere.

    `name` is the file's name under figures/, where `make notebooks` (and nothing else) writes the stored picture.
    """

    def __init__(self, fig: Figure, *, name: str, title: str, alt: str):
        if not alt.strip():
            raise ValueError(f"the figure {name!r} needs an alt text: say in words what there is to see")
        self.fig, self.name, self.title, self.alt = fig, name, title, " ".join(alt.split())
        self.image = pixels(fig)

    def __repr__(self) -> str:
        return "\n".join(filter(None, [f"Figure. {self.title}".rstrip(), textwrap.fill(self.alt, 110)]))

    def _repr_mimebundle_(self, include=None, exclude=None):
        alt = f"{self.title}. {self.alt}" if self.title else self.alt
        return png_bundle(self.image, kind="figure", text=repr(self), alt=alt, name=self.name)


def show(fig: Figure, *, name: str, title: str, alt: str) -> Picture:
    """Put the title (what to see) above the figure and return it as a `Picture`: make it the last line of a cell.

    `alt` says in one or two sentences what a reader who cannot see the figure should know.
    """
    if title:
        set_title(fig, title)
    return Picture(fig, name=name, title=title, alt=alt)


def set_title(fig: Figure, title: str) -> None:
    """A bold title at the figure's upper left, broken into lines where it would leave the figure."""
    size = matplotlib.rcParams["figure.titlesize"]
    letters = int(fig.get_figwidth() * 72 / (size * 0.62))  # a bold DejaVu letter is about 0.62 of its size wide
    fig.suptitle(textwrap.fill(title, letters), x=0.012, ha="left")
