"""`python -m transformer_lib experiments`: the trained comparisons, as many as are still missing."""

from __future__ import annotations

import os
from pathlib import Path

from transformer_lib.experiments import results, runner
from transformer_lib.values import shown

MOST = {"seeds": 1_000, "steps": 1_000_000, "workers": 1_000}


def run(options) -> int:
    names = options.only or runner.NAMES
    for what in ("seeds", "steps", "workers"):
        value = getattr(options, what)
        if value is not None and not 1 <= value <= MOST[what]:
            raise ValueError(f"--{what} must be from 1 to {MOST[what]:,}; got {shown(value)}.")
    if options.steps is not None and options.out is None:
        raise ValueError("--steps makes runs that prove nothing: give --out FILE, so that the real results stay.")
    path = Path(options.out) if options.out else results.FILE
    if options.list:
        print(overview(names, options.seeds, path))
        return 0
    print(overview(names, options.seeds, path), flush=True)
    made = runner.run_all(names, options.seeds, options.steps, options.workers, path)
    print(f"{made} runs made; the results are in {path}.")
    return 0


def overview(names, seeds: int, path: Path) -> str:
    """One line per experiment: its question, how many of its runs are done, and how long all take on one core."""
    lines = []
    for name in names:
        jobs = runner.plan([name], seeds)
        done = len(jobs) - len(runner.missing([name], seeds, None, path))
        minutes = runner.expected_seconds([name], seeds) / 60
        title = runner.experiment_named(name).TITLE
        lines.append(f"{name:<20} {done:>2} of {len(jobs):>2} runs done, {minutes:3.0f} min in all   {title}")
    total = runner.expected_seconds(names, seeds) / 60
    return "\n".join([*lines, f"{'all':<20} {total:.0f} CPU minutes; this machine has {os.cpu_count()} cores."])
