"""What a section found, as rows of one table and one JSON file."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from transformer_lib.bench.timing import Times

UNITS = {"tokens/s": "{:,.0f}", "GFLOP/s": "{:,.0f}", "GB/s": "{:.1f}", "MB": "{:,.0f}", "MB/s": "{:.2f}"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. value: the median; low, high: its spread over the rounds.

    ratio: how many times better this library is than `what` (for its own rows: see `against`).
    bar: what `ratio`, or `value` where there is no ratio, should at least be (at_most=True: at most be).
    note: why there is no value, or what to know about it.
    """

    section: str
    case: str
    what: str
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    bar: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached; None where there is none."""
        found = self.value if self.ratio is None else self.ratio
        if self.bar is None or found is None:
            return None
        return found <= self.bar if self.at_most else found >= self.bar


def rate_row(time: Times, amount: float, unit: str, **fields) -> Row:
    """A row whose value is `amount` per second."""
    value, low, high = time.rate(amount)
    return Row(value=value, low=low, high=high, unit=unit, **fields)


def seconds_row(time: Times, **fields) -> Row:
    """A row whose value is the time itself."""
    return Row(value=time.median, low=min(time.seconds), high=max(time.seconds), unit="s", **fields)


def table(rows: list[Row]) -> str:
    """All rows as text, a section and a case named once."""
    lines = [("section", "case", "what", "median", "from … to", "ratio", "bar", "")]
    before = ("", "")
    for row in rows:
        section = row.section if row.section != before[0] else ""
        case = row.case if (row.section, row.case) != before else ""
        before = (row.section, row.case)
        lines.append((section, case, row.what, *numbers(row)))
    widths = [max(len(line[i]) for line in lines) for i in range(8)]
    sides = "<<<>>>>"
    text = ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths)) + f"  {line[7]}" for line in lines]
    return "\n".join(line.rstrip() for line in [text[0], "─" * max(map(len, text)), *text[1:]])


def numbers(row: Row) -> tuple[str, str, str, str, str]:
    """(median, spread, ratio, bar, verdict and note) in words."""
    shown = "" if row.value is None else f"{written(row.value, row.unit)} {row.unit}"
    spread = "" if row.low is None else f"{written(row.low, row.unit)} … {written(row.high, row.unit)}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    bar = "" if row.bar is None else f"{'≤' if row.at_most else '≥'} {row.bar:g}"
    verdict = {None: "", True: "✓", False: "✗"}[row.reached]
    return shown, spread, ratio, bar, f"{verdict} {row.note}".strip()


def written(value: float, unit: str) -> str:
    """With the digits that the unit deserves: three that count where nothing else is said."""
    if unit in UNITS:
        return UNITS[unit].format(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> dict:
    """What the figures depend on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def save(rows: list[Row], path: Path, options: dict) -> None:
    found = [asdict(row) | {"reached": row.reached} for row in rows]
    text = json.dumps({"machine": machine(), "options": options, "rows": found}, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
