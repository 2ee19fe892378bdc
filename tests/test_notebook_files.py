"""The stored notebooks keep to the course's contract, and each rule of it can fail."""

import html
import json
import pathlib
import re

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_rules import RULES, broken_links

from transformer_lib.lessons.build import FIRST_CELL, pictures

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_keeps_the_rule(path, rule):
    assert rule(nbformat.read(path, as_version=4), path) == []


def test_figures_folder_is_what_the_notebooks_draw():
    index = json.loads((ROOT / "figures" / "index.json").read_text(encoding="utf-8"))
    drawn = {}
    for path in NOTEBOOKS:
        found = pictures(nbformat.read(path, as_version=4))
        drawn |= {f"{path.stem}_{name}.png": picture for name, picture in found.items()}
    assert index == {name: alt for name, (_, alt) in drawn.items()}
    for name, (data, _) in drawn.items():
        assert (ROOT / "figures" / name).read_bytes() == data, f"{name} is not the stored picture: run `make notebooks`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_printed_to_html_every_picture_is_there_with_its_alt_text(path):
    """nbconvert's "lab" template drops alt texts (7.17); "classic" keeps them."""
    drawn = pictures(nbformat.read(path, as_version=4))
    page, _ = HTMLExporter(template_name="classic").from_filename(str(path))
    assert len(re.findall(r'<img\b[^>]*\bsrc="data:image/png;base64,', page)) == len(drawn)
    for name, (_, alt) in drawn.items():
        assert f'alt="{alt}"' in html.unescape(page), name


def test_there_are_notebooks():
    assert NOTEBOOKS, "without notebooks the tests above would pass by looking at nothing"


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")), ids=lambda path: path.name)
def test_links_of_the_pages_resolve(path):
    assert broken_links(path.read_text(encoding="utf-8"), path.parent) == []


# The controls: one notebook that is fine, and one way to break it per rule.


def picture(name, kind="figure"):
    about = {"alt": "A map with three words.", "name": name, "kind": kind}
    return new_output("display_data", {"image/png": "AAAA", "text/plain": "Figure"}, metadata={"image/png": about})


def said(**about):
    return new_output("display_data", {"text/plain": "✓"}, metadata={"transformer_lib": about})


@pytest.fixture
def fine(tmp_path):
    """A made-up notebook that keeps all rules, and its path."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "README.md").write_text("# Read me")
    head = "# 1 · Title\n\n30 minutes to read, 9 seconds to run. [README](../README.md)"
    text = "## Part\n\n" + "word " * 1300 + "It has 131,072,000 numbers since 2017. ![a map](../README.md)"
    cells = [new_markdown_cell(head), new_markdown_cell(text)]
    outs = [[picture(n)] for n in ("map", "a", "b", "c", "d")] + [[picture(n, "explorer")] for n in "ef"]
    outs += [
        [said(question="?")],
        [said(question="!")],
        [said(claim="n", stated="131,072,000", computed="131,072,000")],
    ]
    outs += [[said(exercise=name, status="open")] for name in "xyz"]
    cells += [new_code_cell(FIRST_CELL, execution_count=k, outputs=o) for k, o in enumerate(outs, 1)]
    for k, name in enumerate("xyz", len(outs) + 1):
        hidden = {"tags": ["solution"], "jupyter": {"source_hidden": True}}
        out = [said(exercise=name, status="right")]
        cells.append(new_code_cell("2", execution_count=k, outputs=out, metadata=hidden))
    cells += [new_markdown_cell("## Remember\n\nThis. [README](../README.md)") for _ in range(2)]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    path = tmp_path / "notebooks" / "01_x.ipynb"
    nbformat.write(notebook, path)
    return notebook, path


def _set(**values):
    return lambda nb, path: [setattr(nb.cells[2], key, value) for key, value in values.items()]


def _say(text, cell=1):
    def change(nb, path):
        nb.cells[cell].source += text

    return change


BROKEN = {
    "counts_in_order": _set(execution_count=None),
    "kernel_python3": lambda nb, path: nb.metadata.kernelspec.update(name="conda-mine"),
    "no_errors": lambda nb, path: nb.cells[2].outputs.append(new_output("stream", name="stderr", text="Warning: no")),
    "no_widget_state": lambda nb, path: nb.metadata.update(widgets={}),
    "no_absolute_path": _set(source="open('/home/me/x')"),
    "small_enough": lambda nb, path: path.write_text("x" * 1_500_001),
    "every_image_has_alt": lambda nb, path: nb.cells[2].outputs[0].metadata["image/png"].pop("alt"),
    "links_resolve": _say("[next](02_none.ipynb)"),
    "outline": _say("\n\n#### Too deep"),
    "header_and_footer": lambda nb, path: nb.cells[0].update(source="# Title\n\n30 minutes [README](../README.md)"),
    "measures": _say(" word" * 1500),
    "exercises_solved": lambda nb, path: nb.cells[-3].outputs[0].metadata["transformer_lib"].update(status="wrong"),
    "claimed_numbers": _say(" And 10,922.67 too."),
    "first_cell_says_what_is_missing": _set(source="from transformer_lib.lessons import claim"),
    "unique_ids": lambda nb, path: nb.cells[3].update(id=nb.cells[2].id),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_accepts_a_fine_notebook_and_catches_a_broken_one(fine, rule):
    notebook, path = fine
    assert rule(notebook, path) == []
    BROKEN[rule.__name__](notebook, path)
    assert rule(notebook, path) != []
