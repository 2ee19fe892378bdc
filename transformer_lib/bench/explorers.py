"""Every explorer of the course: milliseconds from a changed control to the new picture, in Python.

The explorers are those that the notebooks' cells make: each notebook is run in a kernel, as `make notebooks` does, and
a last cell measures what it finds there.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import nbformat

from transformer_lib.bench.report import Row

MEDIAN_BAR, SLOW_BAR = 50.0, 100.0  # ms: the median, and what 95 of 100 updates stay below
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CELL = "from transformer_lib.bench.explorers import print_times\nprint_times({n})"
MARK = "explorer times: "


def run(options) -> Iterator[Row]:
    """options: .quick, .notebooks: the first letters of the files to run, all where none is given."""
    from transformer_lib.lessons.build import execute, select

    for path in select(NOTEBOOKS, list(options.notebooks or (["02"] if options.quick else []))):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.append(nbformat.v4.new_code_cell(CELL.format(n=3 if options.quick else 20)))
        for title, times in read_times(execute(notebook, path.parent)).items():
            yield from rows(path.stem, title, times)


def rows(notebook: str, title: str, times: list[float]) -> Iterator[Row]:
    """Two rows per explorer: the median and the 95th percentile."""
    slow = statistics.quantiles(times, n=20, method="inclusive")[-1]
    for what, value, bar in (("median", statistics.median(times), MEDIAN_BAR), ("95%", slow, SLOW_BAR)):
        yield Row(section="explorers", case=f"{notebook}: {title}", what=what, value=value, low=min(times),
                  high=max(times), unit="ms", bar=bar, at_most=True)  # fmt: skip


def print_times(n: int) -> None:
    """Run in a notebook's kernel: measure every explorer that lives there."""
    from transformer_lib.explorers.base import _Shell

    found = {shown.title: shown.measure(n) for shown in gc.get_objects() if isinstance(shown, _Shell)}
    print(MARK + json.dumps({title: times for title, times in found.items() if times}))


def read_times(notebook: nbformat.NotebookNode) -> dict[str, list[float]]:
    """What `print_times` printed in the last cell."""
    text = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    line = next(line for line in text.splitlines() if line.startswith(MARK))
    return json.loads(line.removeprefix(MARK))
