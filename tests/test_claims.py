"""Claims: a stated number that is not the computed one always fails, and prose cannot state an unclaimed one."""

import copy
import math
from fractions import Fraction

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from transformer_lib import __main__
from transformer_lib.lessons.build import execute
from transformer_lib.lessons.claims import ClaimError, claim, claims_of, collect, long_numbers, table, unclaimed_numbers

HOLD = [
    (6_738_415_616, 6_738_415_616),
    (math.exp(16), "8,886,110.5"),
    (2**31, "2 GiB"),
    (2e9, "2 GB"),
    (0.6665, "67%"),
    (0.00784, "0.8 %"),
    (6_738_415_616, "6.7 billion"),
    (0.01249, "0.01 s"),
    (-2.5, "−2.5"),
    (1.5e-3, "1.5e-3"),
    (torch.tensor(7), 7),
    (np.float32(0.25), "0.25"),
    (torch.zeros(2, 3).shape, (2, 3)),
    (True, True),
]
FAIL = [
    (6_738_415_617, 6_738_415_616),
    (math.exp(16) + 0.06, "8,886,110.5"),
    (2e9, "2.0 GiB"),
    (67, "67%"),
    (math.nan, "1.0"),
    (math.inf, "1"),
    (1, True),
    (2.5, "-2.5"),
    ((2, 3), (3, 2)),
    ("8", 8),
]


@pytest.mark.parametrize(("computed", "stated"), HOLD)
def test_what_holds_is_shown(computed, stated, capsys):
    claim("this", computed, stated)
    assert capsys.readouterr().out.startswith("✓ this: ")


@pytest.mark.parametrize(("computed", "stated"), FAIL)
def test_what_does_not_hold_raises_with_both_values(computed, stated):
    with pytest.raises(ClaimError, match=r"the text says .*, but the code computes"):
        claim("this", computed, stated)


def test_a_bare_float_has_no_known_digits():
    with pytest.raises(TypeError, match=r'as text, "0\.5"'):
        claim("this", 0.5, 0.5)


@given(st.integers(-(10**9), 10**9), st.integers(0, 4), st.fractions(-1, 1))
def test_a_number_may_be_off_by_half_of_its_last_digit_and_no_more(number, decimals, off):
    stated = f"{number / 10**decimals:,.{decimals}f}"
    computed = float(Fraction(number, 10**decimals) + off * Fraction(1, 10**decimals))
    if abs(abs(off) - Fraction(1, 2)) < Fraction(1, 1000):
        return  # the very edge depends on how a float is written
    if abs(off) < Fraction(1, 2):
        claim("this", computed, stated)
    else:
        with pytest.raises(ClaimError):
            claim("this", computed, stated)


def test_long_numbers_are_found_and_years_are_not():
    text = r"In 2017: 131,072,000, 32{,}000, 10,922.67, 6738415616 and 0.8% or 512; `d=4096`; [1706.03762](x), v2.13.0"
    assert long_numbers(text) == ["131,072,000", "32{,}000", "10,922.67", "6738415616", "4096", "1706.03762"]


def notebook_with(*cells):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return new_notebook(cells=list(cells), metadata=kernel)


def test_claims_are_recomputed_and_stored_lies_are_caught(tmp_path, monkeypatch):
    code = "from transformer_lib.lessons import claim\nclaim('product', 32_000 * 4_096, 131_072_000)"
    written = notebook_with(new_markdown_cell("131,072,000 and 11,008 numbers"), new_code_cell(code))
    done = execute(written, tmp_path)
    honest = copy.deepcopy(done)
    path = tmp_path / "01_x.ipynb"
    nbformat.write(done, path)
    monkeypatch.setattr("transformer_lib.lessons.build.execute", lambda *_: honest)  # a kernel's start takes seconds
    rows = collect(tmp_path, recompute=True)
    assert [(row.notebook, row.claim, row.stated, row.computed) for row in rows] == [
        ("01_x", "product", "131,072,000", "131,072,000")
    ]
    assert rows == claims_of(done, "01_x")
    assert "1 claims in 1 notebooks" in table(rows)
    assert unclaimed_numbers(done) == ["11,008"]
    done.cells[1].outputs[0].metadata["transformer_lib"]["computed"] = "131,072,001"
    nbformat.write(done, path)
    with pytest.raises(ClaimError, match="stored claims"):
        collect(tmp_path, recompute=True)


def test_no_notebooks_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="no notebooks in"):
        collect(tmp_path)


def test_a_notebook_that_stops_is_one_sentence_of_the_command(tmp_path, capsys):
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), tmp_path / "01_x.ipynb")
    assert __main__.main(["claims", "--recompute", "--notebooks", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "01_x.ipynb does not run to its end: division by zero.\n"
