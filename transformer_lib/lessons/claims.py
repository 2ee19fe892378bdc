"""`claim`: each number that a notebook's text states is computed beside it, and a difference fails the cell.

`python -m transformer_lib claims` lists the claims of all notebooks in one table, from their stored outputs;
`--recompute` runs every notebook in a fresh kernel and compares anew, trusting nothing that is stored.
"""

import dataclasses
import decimal
import math
import pathlib
import re
from decimal import Decimal

import nbformat

from transformer_lib.lessons.page import Note, escape, show_note

# A stated number may end with one of these; the computed value is then given in the base unit (a share, bytes, ones).
UNITS = {
    "%": Decimal("0.01"),
    **{f"{prefix}iB": Decimal(1024) ** power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}B": Decimal(1000) ** power for power, prefix in enumerate("kMGTP", 1)},
    "million": Decimal(10) ** 6,
    "billion": Decimal(10) ** 9,
    "trillion": Decimal(10) ** 12,
}
STATED = re.compile(r"\s*([-−+]?\d[\d,]*(?:\.\d+)?(?:[eE][-−+]?\d+)?)\s*(.*?)\s*")


class ClaimError(AssertionError):
    """The text states something else than the code computes."""


def claim(what: str, computed, stated) -> None:
    """Show one line "what: computed ✓", or raise `ClaimError` when `computed` is not what the text states.

    stated: an int (must be equal exactly); a text such as "8,886,110.5", "2 GiB", "0.8 %" or "6.7 billion" (the
        computed value, rounded to the stated digits, must be equal; with one of the units in `UNITS` the computed
        value is in bytes, or ones, or a share; any other unit is only words); or a bool, tuple or anything else that
        is compared with ==.
    """
    value = _plain(computed)
    if isinstance(stated, float):
        raise TypeError(f'claim({what!r}): state the number as text, "{stated}", so that its digits are known')
    shown, equal = _compare(value, stated)
    if not equal:
        raise ClaimError(f"claim {what!r}: the text says {_words(stated)}, but the code computes {shown}")
    text = f"✓ {what}: {shown}"
    body = f"<b>✓</b> {escape(what)}: <b>{escape(shown)}</b>"
    about = {"claim": what, "stated": _words(stated), "computed": shown}
    show_note(Note(text, body, "right"), about)


def _plain(value):
    """A Python number, tuple, … for one of torch or numpy."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if type(value).__name__ == "Size":
        return tuple(value)
    return value


def _words(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _compare(value, stated) -> tuple[str, bool]:
    """(The computed value in words, written like the stated one; whether they are equal.)"""
    if isinstance(stated, bool) or isinstance(value, bool):
        return _words(value), value is stated
    if isinstance(stated, int):
        return _words(value), value == stated
    match = STATED.fullmatch(stated) if isinstance(stated, str) else None
    if match and isinstance(value, int | float):
        return _compare_digits(value, match[1], match[2])
    return _words(value), value == stated


def _compare_digits(value: float, number: str, unit: str) -> tuple[str, bool]:
    """Round the value to the digits of the stated number: half of the last digit is as far as it may be off."""
    target = Decimal(number.replace(",", "").replace("−", "-"))
    step = Decimal(1).scaleb(target.as_tuple().exponent)
    if not math.isfinite(value):
        return str(value), False
    with decimal.localcontext(prec=60):
        scaled = Decimal(value) / UNITS.get(unit, Decimal(1))
        rounded = scaled.quantize(step, decimal.ROUND_HALF_UP)
    close = abs(scaled - target) <= step / 2 * (1 + Decimal("1e-9"))
    shown = target if close else rounded
    digits = f"{shown:,}" if "e" not in number.lower() else f"{shown:e}"
    return f"{digits} {unit}".strip().replace(" %", "%"), close


@dataclasses.dataclass(frozen=True)
class Row:
    """One claim of one notebook, as it is stored in the claim's output."""

    notebook: str
    claim: str
    stated: str
    computed: str


def claims_of(notebook: nbformat.NotebookNode, name: str) -> list[Row]:
    """The claims in a notebook's outputs, in order."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [output.get("metadata", {}).get("transformer_lib", {}) for cell in cells for output in cell.outputs]
    parts = ("claim", "stated", "computed")
    return [Row(name, *(str(about[part]) for part in parts)) for about in kept if "claim" in about]


def collect(folder: pathlib.Path, recompute: bool = False) -> list[Row]:
    """All claims of the notebooks in a folder; `recompute` runs each in a fresh kernel, in memory.

    Raises `FileNotFoundError` where there is no notebook, and `ClaimError` for a claim that does not hold.
    """
    paths = sorted(pathlib.Path(folder).glob("*.ipynb"))
    if not paths:
        raise FileNotFoundError(f"no notebooks in {folder}; run this from the project's folder or pass --notebooks.")
    rows = []
    for path in paths:
        try:
            notebook = nbformat.read(path, as_version=4)
            stored = claims_of(notebook, path.stem)
        except Exception as error:  # what nbformat raises on a damaged file is whatever happens first
            reason = str(error).strip().split("\n")[0][:200]
            raise ValueError(f"{path} is no notebook, or it is damaged ({type(error).__name__}: {reason}).") from None
        if recompute:
            from transformer_lib.lessons.build import FAILURES, execute

            try:
                computed = claims_of(execute(notebook, path.parent), path.stem)
            except FAILURES as error:
                reason = getattr(error, "evalue", None) or type(error).__name__
                raise ClaimError(f"{path.name} does not run to its end: {reason}.") from error
            if stored != computed:
                raise ClaimError(f"{path.name}: the stored claims are not those computed now; run `make notebooks`.")
        rows += stored
    return rows


def table(rows: list[Row]) -> str:
    """The claims as a text table."""
    heads = ("notebook", "claim", "stated", "computed")
    lines = [heads, *((row.notebook, row.claim, row.stated, row.computed) for row in rows)]
    wide = [max(len(line[k]) for line in lines) for k in range(4)]
    text = [f"  {a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}}  {d:>{wide[3]}}" for a, b, c, d in lines]
    marked = [text[0].rstrip(), *("✓" + line[1:].rstrip() for line in text[1:])]
    return "\n".join([*marked, "", f"{len(rows)} claims in {len({row.notebook for row in rows})} notebooks"])


NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?:\.\d+)?|(?<![\w.,])\d+(?:\.\d+)?(?![\w,]*\d)")
UNREAD = re.compile(r"```.*?```|\]\([^)]*\)|<[^>]+>|https?://\S+|arXiv:\S+", re.DOTALL)


def long_numbers(markdown: str) -> list[str]:
    """The numbers with four or more significant digits in a text, as written; years and addresses are left out."""
    found = NUMBER.findall(UNREAD.sub(" ", markdown))
    return [n for n in found if len(_digits(n)) >= 4 and not re.fullmatch(r"(19|20)\d\d", n)]


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number).lstrip("0")


def _value(number: str) -> Decimal:
    return Decimal(re.sub(r"[^\d.]", "", number))


def unclaimed_numbers(notebook: nbformat.NotebookNode) -> list[str]:
    """The numbers of four or more digits in the notebook's prose that no claim of the notebook states."""
    stated = {_value(n) for row in claims_of(notebook, "") for n in re.findall(r"\d[\d,]*(?:\.\d+)?", row.stated)}
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [number for text in prose for number in long_numbers(text) if _value(number) not in stated]
