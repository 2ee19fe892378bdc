"""Running one cell again, or all of them, changes nothing; a notebook needs nothing but the toy, which it trains."""

import copy
import os
import pathlib
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from transformer_lib import toy
from transformer_lib.lessons.build import execute

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICK = "02_attention"


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def said(cell) -> list:
    """What a cell has shown that teaches: text, verdicts of claims, checks and predictions, pictures by their words.

    Of a cell that nbval does not compare, only the verdicts: the rest differs between machines and runs.
    """
    shown = []
    ignored = re.search(r"^\s*#\s*NBVAL_IGNORE_OUTPUT", cell.source, re.MULTILINE)
    for output in cell.outputs:
        about = output.get("metadata", {})
        if "transformer_lib" in about and not ignored:
            shown.append(dict(about["transformer_lib"]))
        elif "transformer_lib" in about:
            shown.append(
                {key: about["transformer_lib"].get(key) for key in ("claim", "exercise", "status", "question")}
            )
        if output.output_type == "error" or output.get("name") == "stderr":
            shown.append(dict(output))
        elif not ignored:
            data = output.get("data", {})
            shown.append(output.get("text") or {kind: data[kind] for kind in data if kind.startswith("text/")})
            shown += [f"picture {about['image/png'].get('name')}"] if "image/png" in data else []
    return shown


def differences(stored, folder, again: bool) -> list[str]:
    """Run each code cell twice in a row in one kernel, then (`again`) all once more: what differs from the stored."""
    notebook = copy.deepcopy(stored)
    notebook.cells = [copy.deepcopy(cell) for cell in code_cells(stored) for _ in range(2)]
    notebook.cells += [copy.deepcopy(cell) for cell in code_cells(stored)] * again
    for number, cell in enumerate(notebook.cells):
        cell.id = f"run-{number}"
    ran = [said(cell) for cell in execute(notebook, folder).cells]
    wanted = [said(cell) for cell in code_cells(stored)]
    passes = {"once": ran[0 : 2 * len(wanted) : 2], "twice": ran[1 : 2 * len(wanted) : 2]}
    passes |= {"in a second pass over the notebook": ran[2 * len(wanted) :]} if again else {}
    return [
        f"cell {number}, run {how}, says {shown} and not {expected}"
        for how, all_shown in passes.items()
        for number, (shown, expected) in enumerate(zip(all_shown, wanted, strict=True), 1)
        if shown != expected
    ]


@pytest.mark.parametrize(
    ("path", "again"),
    [
        *[pytest.param(path, False, id=path.stem) for path in NOTEBOOKS if path.stem == QUICK],
        *[pytest.param(path, True, id=f"{path.stem}, and all again", marks=pytest.mark.long) for path in NOTEBOOKS],
    ],
)
def test_a_cell_that_is_run_again_says_the_same(path, again, trained):
    assert differences(nbformat.read(path, as_version=4), path.parent, again) == []


def test_a_cell_that_depends_on_how_often_it_ran_is_seen(tmp_path):
    sources = ["total = 0", "total += 1\nprint(total)", "# NBVAL_IGNORE_OUTPUT\nprint(total)", "print('same')"]
    stored = execute(new_notebook(cells=[new_code_cell(source) for source in sources]), tmp_path)
    assert [said(cell) for cell in stored.cells] == [[], ["1\n"], [], ["same\n"]]
    found = differences(stored, tmp_path, again=True)
    assert found == ["cell 2, run twice, says ['2\\n'] and not ['1\\n']"]


RUN = """
import pathlib, sys
import nbformat
from transformer_lib.lessons.build import execute
path = pathlib.Path(sys.argv[1])
execute(nbformat.read(path, as_version=4), path.parent)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "pair", list(zip(NOTEBOOKS[::2], NOTEBOOKS[1::2])), ids=lambda pair: "+".join(p.stem for p in pair)
)
def test_two_notebooks_at_once_on_a_fresh_clone_train_one_toy(pair, tmp_path):
    """Each needs nothing from another notebook; whoever comes first trains, the other waits for it."""
    environment = os.environ | {"TRANSFORMER_CHECKPOINTS": str(tmp_path)}
    command = [sys.executable, "-c", RUN]
    kernels = [subprocess.Popen([*command, path], env=environment, stderr=subprocess.PIPE, text=True) for path in pair]
    for kernel in kernels:
        _, errors = kernel.communicate(timeout=1_200)
        assert kernel.returncode == 0, errors[-3000:]
    (folder,) = tmp_path.iterdir()
    assert toy.is_trained(folder)
