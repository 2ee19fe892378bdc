"""Runs that take turns, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Times:
    """Seconds of one candidate, one per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def rate(self, amount: float) -> tuple[float, float, float]:
        """(median, least, most) of `amount` per second."""
        return amount / self.median, amount / max(self.seconds), amount / min(self.seconds)

    def over(self, other: Times) -> float:
        """How many times longer than `other` this takes: the median over rounds, whose two runs stood side by side."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def in_turns(
    runs: dict[str, Callable[[], object]], rounds: int = 5, clock: str = "wall", warm: Collection[str] = ()
) -> dict[str, Times]:
    """Time every run once per round, in an order that moves on by one each round, after one run that is not timed.

    warm: the runs that are made once more, untimed, just before each time. A virtual machine may take back memory that
    was not touched for a second, and a single read of it is then up to ten times slower than the next one.
    """
    if clock not in CLOCKS:
        raise ValueError(f"clock must be one of {', '.join(CLOCKS)}; got {clock!r}.")
    names, now = list(runs), CLOCKS[clock]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for run in runs.values():
        run()
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            if name in warm:
                runs[name]()
            start = now()
            runs[name]()
            seconds[name].append(now() - start)
    return {name: Times(tuple(values)) for name, values in seconds.items()}
