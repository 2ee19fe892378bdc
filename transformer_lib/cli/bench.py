"""`python -m transformer_lib bench`: how fast the library is."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from transformer_lib.bench.explorers import NOTEBOOKS
from transformer_lib.bench.report import Row, save, table
from transformer_lib.devices import available_cores, using_threads
from transformer_lib.lessons.build import select
from transformer_lib.train_config import MOST_THREADS
from transformer_lib.values import shown

MOST_ROUNDS = 1_000

SECTIONS = {
    "train": "train", "profile": "profile", "decode": "decode", "prefill": "prefill", "batch": "batch",
    "tokenizer": "text", "start": "start", "threads": "threads", "explorers": "explorers", "keys": "keys",
}  # name -> module of transformer_lib.bench  # fmt: skip


def run(options) -> int:
    chosen = options.sections or list(SECTIONS)
    for name in chosen:
        if name not in SECTIONS:
            raise ValueError(f"There is no section {shown(name)}; choose of {', '.join(SECTIONS)}.")
    threads = available_cores() if options.threads is None else options.threads
    for name, value, most in (("threads", threads, MOST_THREADS), ("rounds", options.rounds, MOST_ROUNDS)):
        if not 1 <= value <= most:
            raise ValueError(f"--{name} must be from 1 to {most:,}; got {shown(value)}.")
    if options.clock == "cpu" and threads > 1:
        raise ValueError("--clock cpu adds up the seconds of all threads: use it with --threads 1.")
    select(NOTEBOOKS, options.notebooks or [])
    rows: list[Row] = []
    out = Path(options.out)
    check_writable(out)  # now, and not after the first minutes
    with using_threads(threads):
        for name in chosen:
            print(f"bench: {name} …", file=sys.stderr, flush=True)
            rows += import_module(f"transformer_lib.bench.{SECTIONS[name]}").run(options)
            said = {k: v for k, v in vars(options).items() if not callable(v)} | {"threads": threads}
            save(rows, out, said)  # after each section: an interrupted run keeps what it has measured
    print(table(rows))
    print(f"\n{threads} thread{'s' * (threads > 1)}, {options.clock} clock; all figures: {out}")
    return 0


def check_writable(file: Path) -> None:
    """Raise OSError if it cannot be written; nothing is left behind."""
    was_there = file.exists()
    file.open("a").close()
    if not was_there:
        file.unlink()
