"""Every notebook in the real JupyterLab: it runs, its explorers follow the keyboard, its stored pictures are seen."""

import os
import pathlib
import shutil

import nbformat
import pytest
from browser import FLAGS, Notebook, chromium, jupyter_lab
from nbformat.v4 import new_code_cell, new_notebook

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
MISSING = "no Chromium found; on Debian: apt-get install chromium"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None and os.environ.get("CI") != "true", reason=MISSING),
]

# A control experiment: one explorer that works, one whose slider is dead, one that raises, and a cell that fails.
CONTROL = """
import ipywidgets as widgets
from transformer_lib.explorers import Drawing, Explorer, HtmlExplorer

def make(kind):
    def build(fig):
        bar = fig.subplots().bar([0], [1])[0]
        def update(x, on):
            if kind == "raising" and x != 3:
                raise ValueError("planted")
            if kind != "dead":
                bar.set_height(x / 10 + on)
            return f"{kind}: {x if kind != 'dead' else 0}"
        return update
    controls = {"x": widgets.IntSlider(3, 0, 9, description="x"), "on": widgets.Checkbox(False, description="on")}
    return Explorer(build, controls, title=kind, name=kind, figsize=(4, 2))
"""
WORDS = """
def draw(text):
    drawing = Drawing(300, 40)
    drawing.text(100, 20, text, colour="#0072B2")
    return drawing, f"words: {len(text)} letters"
HtmlExplorer(draw, {"text": widgets.Text("hello", description="text")}, title="words", name="words")
"""


POOR = """
from IPython.display import HTML, display
display(HTML("<div style='width: 3000px; background: #ddd; color: #000'>wide</div>"))
display(HTML("<p style='background: #777; color: #888'>pale</p>"))
display(HTML("<p style='background: #fff; color: #767676'>just dark enough</p>"))
"""
REAL = "12_real_model.ipynb"
RESTARTED = "02_attention.ipynb"  # it runs the quickest


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A copy of the notebooks in a running JupyterLab, and a browser: a function that opens one of them."""
    assert chromium() is not None, MISSING
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    root, home = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("home")
    if NAMES:
        for folder in ("notebooks", "figures"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    cells = [
        CONTROL,
        "make('fine')",
        WORDS,
        "make('dead')",
        "make('raising')",
        POOR,
        "raise RuntimeError('broken cell')",
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=[new_code_cell(c) for c in cells], metadata=kernel), root / "control.ipynb")
    with jupyter_lab(root, home) as (address, token), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield lambda name: Notebook(browser, address, token, name)
        browser.close()


@pytest.mark.parametrize("name", NAMES)
def test_notebook_shows_its_pictures_runs_and_follows_the_keyboard(lab, name):
    stored = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    outputs = [output for cell in stored.cells if cell.cell_type == "code" for output in cell.outputs]
    images = [output.metadata["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    notebook = lab(f"notebooks/{name}")
    try:
        assert not notebook.trusted()
        assert notebook.stored_faults(len(images)) == []
        assert notebook.run() == []
        explorers = notebook.explorers()
        assert len(explorers) == sum(about.get("kind") == "explorer" for about in images)
        seconds = 10 if name == REAL else 1  # each of its updates runs a model of 135 million parameters
        assert [fault for explorer in explorers for fault in notebook.move_all(explorer, seconds)] == []
        assert notebook.narrow_and_dark() == []
        if name == RESTARTED:
            assert notebook.run_again() == []
            assert [fault for explorer in notebook.explorers() for fault in notebook.move_all(explorer)] == []
    finally:
        notebook.close()


def test_the_test_itself_sees_a_dead_slider_a_raising_callback_and_a_broken_cell(lab):
    notebook = lab("control.ipynb")
    try:
        faults = notebook.run()
        assert "a cell failed" in faults
        assert any("broken cell" in fault for fault in faults)
        fine, words, dead, raising = notebook.explorers()
        assert len(notebook.milliseconds(fine, 3)) == 3 and notebook.milliseconds(dead, 1) == []  # for `bench keys`
        assert not any("explorer" in fault for fault in notebook.move_all(fine))
        assert not any("explorer" in fault for fault in notebook.move_all(words))
        faults = notebook.move_all(dead)
        assert sum("does not follow" in fault for fault in faults) == 2
        assert any("never changes" in fault for fault in faults)
        assert any("ValueError: planted" in fault for fault in notebook.move_all(raising))
        poor = notebook.narrow_and_dark()
        assert any("px wide where" in fault and fault.endswith("wide") for fault in poor)
        assert not any("just dark enough" in fault for fault in poor)
        assert sum("pale" in fault and "contrast 1." in fault for fault in poor) == 2, "in either theme"
    finally:
        notebook.close()
