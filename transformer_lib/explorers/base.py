"""A picture with controls that follows them quickly, says in words what it shows, and never hides an error.

How it works. A matplotlib figure is built once and its artists are changed in place; it is laid out once and then the
layout engine is switched off; only what moves is drawn again (`layers.py`); it is encoded as PNG with the weakest
compression at twice the page's density and put into an `ipywidgets.Image`. That never flickers, and is several times
faster than `ipywidgets.interact`. While a
slider is dragged, ipywidgets itself sends the next value only when the last one was answered, so nothing queues up.

JupyterLab hides exceptions of widget callbacks. An explorer catches them and shows them in the page.

`ipywidgets.Image` has no alt text (and one with a tooltip fails in ipywidgets 8.1), so the summary stands
directly below the picture as a live line that screen readers speak. Where there is no kernel the picture has the
summary as its alt text.
"""

import html
import textwrap
import time
import traceback

import ipywidgets as widgets
import matplotlib
import numpy as np

from transformer_lib.explorers.layers import Layers
from transformer_lib.plots.style import (
    COLOURS,
    DENSITY,
    DPI,
    TEXT,
    is_static,
    new_figure,
    pixels,
    png,
    png_bundle,
    set_title,
)

LONGEST_TEXT = 200  # letters a learner may type before the text is cut
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
TYPED = (widgets.Text, widgets.Textarea)
# JupyterLab takes the arrow keys away from these, so they cannot be used without a mouse.
MOUSE_ONLY = (widgets.Dropdown, widgets.RadioButtons, widgets.Select, widgets.SelectMultiple)


def clip_text(text: str, longest: int = LONGEST_TEXT, instead: str = "Once upon a time") -> tuple[str, str]:
    """What to show for a text that a learner typed: (the text, cut if need be; a note for the summary, or "")."""
    if not text.strip():
        return instead, f' (the box is empty: showing "{instead}")'
    if len(text) > longest:
        return text[:longest], f" (only the first {longest} of {len(text):,} letters are used)"
    return text, ""


class _Shell:
    """Controls, a picture, a line of text and a place for errors. Subclasses say how the picture is made and shown."""

    def __init__(self, controls: dict, *, title: str, name: str, picture: widgets.DOMWidget):
        self.title, self.name, self.controls = title, name, controls
        self.caption = widgets.HTML(_caption(self.summary))
        self.error = widgets.HTML("")
        self.picture = picture
        for control in controls.values():
            _arrange(control)
            control.observe(self._follow, "value")
        row = widgets.Box(
            list(controls.values()), layout=widgets.Layout(display="flex", flex_flow="row wrap", width="100%")
        )
        row.add_class("explorer-controls")
        picture.add_class("explorer-picture")
        self.widget = widgets.VBox(
            [row, picture, self.caption, self.error], layout=widgets.Layout(width="100%", overflow="hidden")
        )
        self.widget.add_class("explorer")

    def values(self) -> dict:
        """The present value of each control, by name; a half of a surrogate pair, which is no letter, becomes "?"."""
        found = {name: control.value for name, control in self.controls.items()}
        return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in found.items()}

    def _follow(self, _change=None) -> None:
        """Draw again. An exception is shown below the picture, and goes away with the next value that works."""
        try:
            self._draw()
            self.caption.value, self.error.value = _caption(self.summary), ""
        except Exception as error:
            self.error.value = _alert(error)

    def measure(self, n: int = 20) -> list[float]:
        """Milliseconds from a changed control to the new picture, `n` times per control. Leaves the values as found.

        A slider goes to `n` different places, a text becomes `n` others: what was seen before may be remembered.
        """
        times = []
        for control in self.controls.values():
            before, choices = control.value, alternatives(control, n)
            for k in range(n):
                start = time.perf_counter()
                control.value = choices[k % len(choices)]
                times.append(1e3 * (time.perf_counter() - start))
            control.value = before
        return times

    def __repr__(self) -> str:
        return f"{self.title}: {self.summary}"

    def _repr_mimebundle_(self, include=None, exclude=None):
        image = self._pixels() if not is_static() else np.vstack([self._pixels(), self._footer()])
        data, metadata = png_bundle(image, kind="explorer", text=repr(self), alt=repr(self), name=self.name)
        if not is_static():
            data[WIDGET_VIEW] = self.widget._repr_mimebundle_()[WIDGET_VIEW]
        return data, metadata

    def _footer(self) -> np.ndarray:
        """For readers without a kernel: the summary and what could be moved, as lines below the picture."""
        names = ", ".join(control.description for control in self.controls.values())
        width, size = self._pixels().shape[1] / DPI / DENSITY, matplotlib.rcParams["font.size"]
        letters = int(width * 132 / size)  # a line of the font's mean letters then fits, wide ones included
        lines = [(line, COLOURS["black"]) for line in textwrap.wrap(self.summary, letters)]
        hint = f"▸ A picture of an explorer. Run this cell to change: {names}"
        lines += [(line, "#555555") for line in textwrap.wrap(hint, letters)]
        height = 0.1 + 0.024 * size * len(lines)
        fig = new_figure(width, height)
        for k, (line, colour) in enumerate(lines):
            below = (0.1 + 0.024 * size * k) / height
            fig.text(0.012, 1 - below, line, va="top", size=size, color=colour, parse_math=False)
        return pixels(fig)


class Explorer(_Shell):
    """A matplotlib figure with controls.

    build: called once as `build(fig)`; makes the artists and returns `update(**values) -> summary`, which changes them
        in place and says in one line, with rounded numbers, what there is to see. Axes limits must hold every value.
    controls: {name of update's argument: an ipywidgets control with a `description`}.
    name: the picture's file name under figures/. figsize: inches, at most 8 wide.
    """

    def __init__(self, build, controls: dict, *, title: str, name: str, figsize: tuple[float, float] = (8.0, 3.2)):
        self.figure, self.controls = new_figure(*figsize), controls
        set_title(self.figure, title)
        self.update = build(self.figure)
        self.summary = self.update(**self.values())  # not caught: a bug must fail the cell, and with it the tests
        self.figure.canvas.draw()
        self.figure.set_layout_engine("none")  # laid out once: axes do not jump
        self.layers = Layers(self.figure)
        width = widgets.Layout(  # without a margin at the sides, which a narrow page would cut off the picture
            width="100%", max_width=f"{int(figsize[0] * DPI)}px", height="auto", object_fit="contain", margin="2px 0"
        )
        picture = widgets.Image(format="png", value=self.png(), layout=width)
        super().__init__(controls, title=title, name=name, picture=picture)

    def _pixels(self) -> np.ndarray:
        return self.layers.draw()

    def png(self) -> bytes:
        """The picture as it is now."""
        return png(self._pixels())

    def _draw(self) -> None:
        self.summary = self.update(**self.values())
        self.picture.value = self.png()


class HtmlExplorer(_Shell):
    """A small drawing with controls whose parts explain themselves under the mouse, drawn as SVG in the page.

    draw: `draw(**values) -> (Drawing, summary)`. The same drawing becomes a PNG where there is no kernel.
    """

    def __init__(self, draw, controls: dict, *, title: str, name: str):
        self.draw, self.controls, self.title = draw, controls, title
        self.drawing, self.summary = draw(**self.values())
        super().__init__(controls, title=title, name=name, picture=widgets.HTML(self._svg()))

    def _svg(self) -> str:
        return self.drawing.svg(label=f"{self.title}: {self.summary}", title=self.title)

    def _pixels(self) -> np.ndarray:
        return self.drawing.pixels(self.title)

    def _draw(self) -> None:
        self.drawing, self.summary = self.draw(**self.values())
        self.picture.value = self._svg()


def alternatives(control, n: int = 4) -> list:
    """Values to try a control with: `n` places of a slider, ends included; all options; texts, awkward ones first."""
    if hasattr(control, "options"):
        return list(control._options_values)
    if isinstance(control, TYPED):
        awkward = ["Lily has a ball.", "", "a" * 3000, "שלום 🙂 \x07\t<b>&", control.value]
        return awkward + [f"{control.value} {k}" for k in range(n - len(awkward))]
    if isinstance(control.value, bool):
        return [not control.value, control.value]
    places, kind = np.linspace(control.min, control.max, n).tolist(), type(control.value)
    if isinstance(control, widgets.FloatLogSlider):
        return [control.base**x for x in places]
    return [kind(x) for x in places]


def _arrange(control) -> None:
    """Labels are never cut, controls stand side by side where there is room; typing waits for Enter."""
    if isinstance(control, MOUSE_ONLY):
        name = type(control).__name__
        raise TypeError(f"a {name} cannot be used by keyboard in JupyterLab; take ToggleButtons or a SelectionSlider")
    if isinstance(control, widgets.ToggleButtons):
        control.style.button_width = "auto"
    if "description_width" in control.style.keys:
        control.style.description_width = "initial"
    wide = "100%" if isinstance(control, TYPED) else "26em" if "slider" in type(control).__name__.lower() else "auto"
    control.layout.width, control.layout.max_width = wide, "min(100%, 60em)"
    control.layout.margin = "2px 18px 2px 2px"
    if isinstance(control, TYPED):
        control.continuous_update = False
    if control.tooltip is None:
        control.tooltip = control.description


def _caption(summary: str) -> str:
    style = f"{TEXT}; white-space: normal"
    return (
        f'<div class="explorer-summary" role="status" aria-live="polite" style="{style}">{html.escape(summary)}</div>'
    )


def _alert(error: Exception) -> str:
    """One sentence, and the traceback folded below it."""
    sentence = html.escape(f"This explorer could not draw these values. {type(error).__name__}: {error}")
    trace = html.escape("".join(traceback.format_exception(error)))
    style = f"{TEXT}; border-left: 4px solid {COLOURS['red']}; padding: 4px 10px; white-space: normal"
    details = f'<details><summary>Where it happened</summary><pre style="white-space: pre-wrap">{trace}</pre></details>'
    return f'<div class="explorer-error" role="alert" style="{style}"><b>✗ {sentence}</b>{details}</div>'
