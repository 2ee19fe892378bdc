"""Whatever is typed into an explorer and wherever its sliders stand: it draws, and says in one line what there is.

The explorers that need no model are made here; those of a notebook, with the models that it trained, in its kernel.
"""

import gc
import html
from functools import partial

import ipywidgets as widgets
import nbformat
import pytest
from anything import examples, tried
from hypothesis import strategies as st
from test_explorer import ALL, bars
from test_notebook_runs import NOTEBOOKS

from transformer_lib.explorers import (
    attention,
    heads,
    kv_cache,
    ledger,
    mask,
    parameters,
    real_model,
    scaling,
    stacking,
)
from transformer_lib.explorers.base import TYPED, _Shell
from transformer_lib.lessons.build import execute
from transformer_lib.lessons.exercises import time_limit

SECONDS = 20  # for one picture: a busy machine is slow, a hang is for ever
UNITS = [
    "a", " ", "\n", "\0", "\x07", "\u202e", "🙂", "👩\u200d👧", "שלום ", "字", "é\u0301", "\ud800", "▁", "<b>&\"'",
    "$x_1^{", "\\", "{0} %s ",
]  # fmt: skip
LONG = st.tuples(st.sampled_from(UNITS), st.sampled_from([1, 30, 300, 100_000])).map(lambda pair: pair[0] * pair[1])
TEXTS = st.one_of(st.just(""), st.text(max_size=40), LONG, st.text(st.sampled_from("".join(UNITS)), max_size=80))


SHARES = st.sampled_from([0, 1]) | st.floats(0, 1)


def place(control, share: float, text: str):
    """What the control shows at this share of its way: 0 and 1 are its ends; any text in a text box."""
    if hasattr(control, "options"):
        values = control._options_values
        return values[min(int(share * len(values)), len(values) - 1)]
    if isinstance(control, TYPED):
        return text
    if isinstance(control.value, bool):
        return share > 0.5
    position = control.min + share * (control.max - control.min)
    return control.base**position if isinstance(control, widgets.FloatLogSlider) else type(control.value)(position)


def check_explorer(explorer, examples: int, texts=TEXTS) -> None:
    start = explorer.values()

    def check(moves):
        for name, control in explorer.controls.items():
            control.value = start[name]  # so that a failure can be repeated
        for name, share, text in moves:
            with time_limit(SECONDS):
                explorer.controls[name].value = place(explorer.controls[name], share, text)
            where, summary = str(explorer.values())[-300:], explorer.summary
            assert explorer.error.value == "", (where, explorer.error.value[-1500:])
            assert summary.strip() and "\n" not in summary and len(summary.encode()) < 3_000, (where, summary)
            assert html.escape(summary) in explorer.caption.value, where

    moves = st.tuples(st.sampled_from(sorted(explorer.controls)), SHARES, texts)
    tried(st.lists(moves, min_size=1, max_size=3), examples, check)


@pytest.mark.parametrize("make", [one for one in ALL if one.values[0] is not bars])  # it refuses a value on purpose
@examples(6, 200)
def test_an_explorer_answers_to_everything(make, examples):
    check_explorer(make(), examples)


OF_A_MODEL = [
    partial(attention.attention_map, row=2), partial(heads.head_atlas, row=2), kv_cache.cache_stepper,
    ledger.stream_ledger, mask.look_ahead, parameters.sentence_cost, real_model.depth_ledger, scaling.score_factor,
    stacking.how_deep, stacking.sampler,
]  # fmt: skip


@pytest.mark.parametrize("make", OF_A_MODEL, ids=lambda make: getattr(make, "func", make).__name__)
@examples(6, 100)
def test_an_explorer_of_a_model_answers_to_everything(make, examples, trained):
    check_explorer(make(*trained, "a fox and a hen"), examples)


def check_all_here(examples: int) -> None:
    """Run in a notebook's kernel: every explorer that lives there."""
    found = [shown for shown in gc.get_objects() if isinstance(shown, _Shell) and shown.controls]
    assert found, "no explorer is left"
    sent = TEXTS.map(lambda text: text.encode("utf-8", "replace").decode())  # no page sends half of a surrogate pair
    for explorer in found:
        check_explorer(explorer, examples, sent)
    print("\n".join(explorer.title for explorer in found))


CELL = """
import sys
sys.path.insert(0, {folder!r})
from test_any_controls import check_all_here
check_all_here({examples})
"""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_explorers_of_a_notebook_answer_to_everything(path, trained):
    notebook = nbformat.read(path, as_version=4)
    cell = CELL.format(folder=str(path.parents[1] / "tests"), examples=60)
    notebook.cells.append(nbformat.v4.new_code_cell(cell))
    assert execute(notebook, path.parent).cells[-1].outputs[0].text.strip()
