"""Explorers: the picture follows its controls, errors are seen, and stored notebooks hold pictures, not widgets."""

import base64
import importlib
import inspect
import io
import itertools
import pkgutil

import ipywidgets as widgets
import numpy as np
import pytest
from PIL import Image

from transformer_lib import explorers
from transformer_lib.explorers import Drawing, Explorer, HtmlExplorer, base, clip_text
from transformer_lib.explorers.base import TYPED, WIDGET_VIEW, alternatives
from transformer_lib.lessons import predict
from transformer_lib.plots import block_map, heat, new_figure, readable, show
from transformer_lib.plots.blockmap import PARTS
from transformer_lib.plots.style import pixels, png

AWKWARD = ["", "a" * 100_000, "🙂 שלום", "\x00\x07\u202e\t\n", "<script>alert(1)</script>$x^", "\ud800"[:0] + "é"]


def bars() -> Explorer:
    def build(fig):
        ax = fig.subplots()
        drawn = ax.bar(range(5), np.zeros(5))
        ax.set(ylim=(0, 1), title="start")

        def update(height, upper, note):
            if height == 7:
                raise ValueError("seven is <not> allowed")
            for bar in drawn:
                bar.set_height(height / 10)
            ax.set_ylim(0, 2 if upper else 1)
            return f"height {height}{' low' if upper else ''}{clip_text(note, 5)[1]}"

        return update

    controls = {
        "height": widgets.IntSlider(3, 0, 10, description="height"),
        "upper": widgets.Checkbox(False, description="twice the range"),
        "note": widgets.Text("note", description="your words"),
    }
    return Explorer(build, controls, title="Five bars", name="bars", figsize=(6, 2))


def squares() -> HtmlExplorer:
    def draw(text):
        drawing = Drawing(600, 50)
        drawing.rect(5, 5, 90, 40, "#D6E8F5", hover=text)
        drawing.text(50, 25, text[:20])
        drawing.line(0, 48, 600, 48)
        return drawing, f"{len(text)} letters"

    return HtmlExplorer(draw, {"text": widgets.Text("a <b>", description="text")}, title="Squares", name="squares")


def course_explorers():
    """The explorers of all lessons that need no trained model, by name."""
    shared = {"base", "drawing", "layers"}
    names = [m.name for m in pkgutil.iter_modules(explorers.__path__) if m.name not in shared]
    for name in names:
        module = importlib.import_module(f"transformer_lib.explorers.{name}")
        for label, function in inspect.getmembers(module, inspect.isfunction):
            needs = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            if function.__module__ == module.__name__ and not label.startswith("_") and not needs:
                yield pytest.param(function, id=f"{name}.{label}")


ALL = [pytest.param(bars, id="bars"), pytest.param(squares, id="squares"), *course_explorers()]


@pytest.mark.parametrize("make", ALL)
def test_every_control_changes_the_picture_and_the_line_below(make):
    explorer = make()
    for name, control in explorer.controls.items():
        before = {(explorer.picture.value, explorer.caption.value)}
        for value in alternatives(control):
            if not (make is bars and value == 7):
                control.value = value
                assert explorer.error.value == "", f"{name} = {value!r}"
                before.add((explorer.picture.value, explorer.caption.value))
        assert len(before) > 1, f"nothing follows {name}"


@pytest.mark.parametrize("make", ALL)
def test_typed_text_of_any_kind_is_shown_or_refused_in_a_sentence(make):
    explorer = make()
    for control in (c for c in explorer.controls.values() if isinstance(c, TYPED)):
        for text in AWKWARD:
            control.value = text
            assert "<script>" not in explorer.caption.value + explorer.error.value
            assert "Traceback" not in explorer.error.value.split("<details>")[0]


@pytest.mark.parametrize("make", ALL)
def test_the_line_is_one_line_and_labels_are_whole(make):
    explorer = make()
    assert explorer.summary.strip()
    assert "\n" not in explorer.summary
    for control in explorer.controls.values():
        assert control.description, "a control without a label cannot be found by a screen reader"
        assert control.style.description_width == "initial"


def test_an_exception_is_shown_in_the_page_and_goes_away():
    explorer = bars()
    picture = explorer.picture.value
    explorer.controls["height"].value = 7
    assert 'role="alert"' in explorer.error.value
    assert "ValueError: seven is &lt;not&gt; allowed" in explorer.error.value.split("<details>")[0]
    assert "Traceback" in explorer.error.value
    assert explorer.picture.value == picture
    explorer.controls["height"].value = 8
    assert explorer.error.value == ""
    assert explorer.picture.value != picture


def test_controls_that_need_a_mouse_are_refused():
    """JupyterLab swallows the arrow keys of selects and radio buttons."""
    with pytest.raises(TypeError, match="a Dropdown cannot be used by keyboard in JupyterLab; take ToggleButtons"):
        HtmlExplorer(lambda x: (Drawing(9, 9), "x"), {"x": widgets.Dropdown(options=[1])}, title="t", name="n")


def test_a_bug_at_the_start_fails_the_cell():
    def build(fig):
        return lambda x: 1 / 0

    with pytest.raises(ZeroDivisionError):
        Explorer(build, {"x": widgets.IntSlider(description="x")}, title="t", name="n")


@pytest.mark.parametrize("make", [bars, squares])
def test_static_mode_stores_a_picture_with_words_and_no_widget(make, monkeypatch):
    live, _ = make()._repr_mimebundle_()
    assert WIDGET_VIEW in live
    monkeypatch.setenv("EXPLORER_STATIC", "1")
    explorer = make()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png"}
    assert data["text/plain"] == live["text/plain"] == f"{explorer.title}: {explorer.summary}"
    assert metadata["image/png"]["alt"] == data["text/plain"]
    image = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert image.width == 2 * metadata["image/png"]["width"] <= 1600
    assert image.height > explorer._pixels().shape[0], "the footer says what can be changed"


def test_what_moves_over_its_background_looks_like_a_plain_drawing():
    """Changed artists, changed limits (background) and a hidden artist: the picture is that of a fresh drawing."""
    explorer = bars()
    for change in ({"height": 9}, {"upper": True}, {"height": 2}):
        for name, value in change.items():
            explorer.controls[name].value = value
        shown = np.asarray(Image.open(io.BytesIO(explorer.picture.value))).astype(int)
        for part in itertools.chain(*explorer.layers.parts):
            part.set_animated(False)
        plain = pixels(explorer.figure).astype(int)
        for part in itertools.chain(*explorer.layers.parts):
            part.set_animated(True)
        explorer.figure.stale = True
        far = (np.abs(shown - plain) > 60).any(axis=-1).mean()
        assert far < 0.003, "only the line of an axis may lie under a bar instead of over it"


def test_a_legend_changes_its_colour_without_a_new_background():
    """Ticks and labels are most of the drawing time: a changed line in a legend must not cost them."""

    def build(fig):
        ax = fig.add_subplot()
        (line,) = ax.plot([0, 1], [0, 1], color="#000000", label="line")
        legend = ax.legend(loc="upper left")

        def update(red):
            for part in (line, legend.legend_handles[0]):
                part.set_color("#D55E00" if red else "#000000")
            return f"red: {red}"

        return update

    explorer = Explorer(build, {"red": widgets.Checkbox(description="red")}, title="t", name="t", figsize=(4, 2))
    background, before = explorer.layers.background, explorer._pixels()
    explorer.controls["red"].value = True
    height, width = before.shape[0] // 2, before.shape[1] // 2  # the legend's quarter
    changed = (before != explorer._pixels()).any(axis=-1)
    assert explorer.layers.background is background and changed[:height, :width].sum() > 20 and changed.any()


def test_the_quick_png_holds_exactly_the_pixels():
    image = np.random.default_rng(0).integers(0, 256, (37, 23, 3), dtype=np.uint8)
    assert (np.asarray(Image.open(io.BytesIO(png(image)))) == image).all()


def test_measure_lists_times_and_restores_the_values():
    explorer = bars()
    before = explorer.values()
    times = explorer.measure(3)
    assert len(times) == 9 and min(times) > 0
    assert explorer.values() == before


def test_svg_escapes_what_was_typed_and_has_hover_texts():
    explorer = squares()
    explorer.controls["text"].value = "<i>&\"'"
    svg = explorer.picture.value
    assert "<i>" not in svg
    assert "<title>&lt;i&gt;&amp;" in svg
    assert 'role="img" aria-label="Squares: 6 letters"' in svg


def test_clipped_text_says_so():
    assert clip_text("short") == ("short", "")
    text, note = clip_text("x" * 100_000, 50)
    assert (len(text), note) == (50, " (only the first 50 of 100,000 letters are used)")
    assert clip_text("  ")[1].startswith(" (the box is empty")


@pytest.mark.parametrize(
    ("piece", "shown"),
    [("▁the", "·the"), ("Ġthe", "·the"), ("\n", "↵"), ("<0x0A>", "↵"), ("中", "U+4E2D"), ("\x07", "U+0007")],
)
def test_tokens_are_readable_on_an_axis(piece, shown):
    assert readable(piece) == shown


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_token_labels_neither_overlap_nor_leave_the_picture(n):
    fig = new_figure(8, 4)
    ax = fig.subplots()
    heat(
        ax,
        np.eye(n),
        ["▁extraordinarily", "$x", "中"] * n,
        [f"▁word{k}" for k in range(n)],
        xlabel="key",
        ylabel="query",
    )
    pixels(fig)
    renderer = fig.canvas.get_renderer()
    for axis in (ax.xaxis, ax.yaxis):
        boxes = [label.get_window_extent(renderer) for label in axis.get_ticklabels() if label.get_text()]
        assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= fig.bbox.x1 and b.y1 <= fig.bbox.y1 for b in boxes)
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_every_part_of_the_map_lights_something():
    dark = pixels(block_map())
    pictures = {part: pixels(block_map(part)) for part in PARTS}
    assert all((picture != dark).any() for picture in pictures.values())
    with pytest.raises(ValueError, match="no part 'nonsense'; its parts are: tokens"):
        block_map("nonsense")


def test_a_figure_needs_an_alt_text_and_fits_the_page():
    with pytest.raises(ValueError, match="needs an alt text"):
        show(new_figure(4, 2), name="n", title="t", alt=" ")
    with pytest.raises(ValueError, match="at most 8 in wide"):
        new_figure(9, 2)


def test_a_prediction_answers_and_its_answer_is_one_of_the_options():
    asked = predict("How many?", [4, 16], answer=lambda: 4 * 4, because="T · T.")
    asked.buttons.value = "4"
    assert "Not so: 16. T · T." in asked.reply.value
    asked.buttons.value = "16"
    assert "✓ Right. T · T." in asked.reply.value
    assert repr(asked).endswith("Answer: 16. T · T.")
    with pytest.raises(ValueError, match="the computed answer '17' is none of the options"):
        predict("How many?", [4, 16], answer=17)
    with pytest.raises(ValueError, match="an option has at most 80 letters"):
        predict("How many?", ["a" * 81, "b"], answer="b")


def test_controls_tell_their_ends():
    assert alternatives(widgets.IntSlider(3, 1, 9)) == [1, 3, 6, 9]
    assert alternatives(widgets.IntSlider(3, 1, 9), 5) == [1, 3, 5, 7, 9]
    assert alternatives(widgets.Dropdown(options=[("a", 1), ("b", 2)])) == [1, 2]
    assert alternatives(widgets.Checkbox(True)) == [False, True]
    assert base.LONGEST_TEXT < 100_000
