"""Starting: what importing the library costs over importing torch, and how long `count` takes to answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from transformer_lib.bench.report import Row, seconds_row
from transformer_lib.bench.timing import Times

IMPORT_BAR, COUNT_BAR = 0.2, 0.5  # seconds
PROGRAM = """
import contextlib, io, sys, time
import torch
start = time.CLOCK()
import transformer_lib
for name in transformer_lib.__all__:
    getattr(transformer_lib, name)
print(time.CLOCK() - start)
from transformer_lib.__main__ import main
import transformer_lib.cli.count
start = time.CLOCK()
with contextlib.redirect_stdout(io.StringIO()):
    main(["count", "llama2-7b"])
print(time.CLOCK() - start)
"""
CLOCKS = {"wall": "perf_counter", "cpu": "process_time"}


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    line = [sys.executable, "-c", PROGRAM.replace("CLOCK", CLOCKS[options.clock])]
    found = []
    for _ in range(options.rounds):
        printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
        found.append([float(number) for number in printed])
    importing, counting = zip(*found)
    for what, seconds, bar in (
        ("importing all public names, over torch", importing, IMPORT_BAR),
        ("count llama2-7b, after imports", counting, COUNT_BAR),
    ):
        yield seconds_row(Times(seconds), section="start", case="a new process", what=what, bar=bar, at_most=True)
