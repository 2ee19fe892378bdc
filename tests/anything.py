"""Values of every kind, and the sentence that refuses them: for the tests of whatever a caller may give."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


class Speechless:
    """Its repr has several lines, and it answers no question."""

    def __repr__(self):
        return "Speechless\n" * 3

    def __bool__(self):
        raise RuntimeError("neither true nor false")


ODD = [
    None, True, False, 10**30, -(2**63), 2**63, 10**400, 1e308, 1e-320, 0.0, b"7", 1j, (), [3], {}, {"a": 1},
    print, Fraction(1, 3), Decimal("0.5"), np.int64(3), np.float32(0.5), np.bool_(True), np.zeros((2, 2)), range(10**6),
    torch.tensor(2), torch.tensor([0.5, 1.0]), torch.zeros(3, 3, dtype=torch.bool), torch.zeros(0), Speechless(),
]  # fmt: skip
EVERY = [*ODD, -1, 0.3, math.nan, math.inf, "", "x\ny", 10**5_000]  # Python writes no number of 4,300 digits or more
UNSPEAKABLE = st.just(5_000).map(lambda digits: 10**digits)
ANYTHING = st.one_of(
    st.sampled_from(ODD), st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=20), UNSPEAKABLE,
    st.lists(st.integers()),
)  # fmt: skip


@st.composite
def options(draw, right: dict, needed=()):
    """Some of the options, with right values but for two of them at most, which are anything."""
    needed = {name: right[name] for name in needed}
    others = {name: values for name, values in right.items() if name not in needed}
    chosen = draw(st.fixed_dictionaries(needed, optional=others))
    return chosen | {name: draw(ANYTHING) for name in draw(st.sets(st.sampled_from(sorted(right)), max_size=2))}


def check_sentence(error: Exception, named) -> None:
    """One sentence on one line, not too long to be read, with one of the names or values that it is about."""
    sentence = str(error)
    assert sentence.isprintable() and sentence.endswith(".") and 20 < len(sentence) < 400, repr(sentence)
    assert re.search(r"[a-z]{2}", sentence) and any(name in sentence for name in named), (sentence, named)


def examples(few: int, many: int = 2_000):
    """Parametrizes a test with the number of examples: a few in `make test`, many in `make test-long`."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.long)])


def tried(strategy, examples: int, check) -> None:
    """`check(value)` with so many values of the strategy."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def each(value):
        check(value)

    each()
