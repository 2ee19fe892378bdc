"""What counts as a number, and how a value is named in the sentence that refuses it."""

from __future__ import annotations

import math
from numbers import Integral, Real

LONGEST = 60  # letters of a value in a sentence


def is_whole(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value, kinds=Real) -> bool:
    """Whether it is a number of these kinds that a float can hold: neither infinite nor, like 10**400, too large."""
    try:
        return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def shown(value) -> str:
    """The value as Python writes it, 1000 as 1,000: on one line, in letters that can be printed, not too long."""
    try:
        text = f"{value:,}" if type(value) is int else " ".join(repr(value).split())
    except Exception:  # of a whole number with more than 4,300 digits, for example
        text = f"a {type(value).__name__}"
    text = printable(text)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def printable(text: str) -> str:
    """`text` on one line, with � for what moves a cursor or is no letter at all."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
