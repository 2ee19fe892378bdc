"""Training S with one thread and with all, on a quiet machine and beside one busy process, under each waiting policy.

Threads that wait for each other may spin, which is fastest while nobody else wants the core, and slowest when somebody
does. How long they spin is read from the environment when torch is loaded, so every setting has a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transformer_lib.bench.report import Row
from transformer_lib.devices import available_cores

BUSY_BAR = 0.8  # of one thread's speed, beside a busy process
SPINNING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
SECONDS = 3.0
PROGRAM = """
import sys, time
import transformer_lib, torch
from transformer_lib.bench.models import SIZES, ours
from transformer_lib.bench.train import steps
from transformer_lib.training import next_token_loss
torch.set_num_threads(int(sys.argv[1]))
size, done = SIZES["S"], 0
step = steps(ours(size.config), size, next_token_loss)
step()
start = time.perf_counter()
while time.perf_counter() < start + float(sys.argv[2]):
    step()
    done += size.batch_size * size.context
print(done / (time.perf_counter() - start))
"""


def settings(cores: int) -> dict[str, tuple[int, dict[str, str]]]:
    """What is compared: name -> (threads, environment)."""
    return {
        "1 thread": (1, {}),
        f"{cores} threads, this library's choice": (cores, {}),
        f"{cores} threads, torch's default": (cores, {"GOMP_SPINCOUNT": "300000"}),
        f"{cores} threads, spinning 5,000 rounds": (cores, {"GOMP_SPINCOUNT": "5000"}),
        f"{cores} threads, never spinning": (cores, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}),
    }


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds."""
    cores = max(available_cores(), 2)
    rounds, seconds = (1, 1.0) if options.quick else (min(options.rounds, 3), SECONDS)
    found = {}
    for busy in (False, True):
        for _ in range(rounds):
            for name, (threads, environment) in settings(cores).items():
                with busy_process(busy):
                    found.setdefault((busy, name), []).append(tokens_per_second(threads, environment, seconds))
    for (busy, name), speeds in found.items():
        one = statistics.median(found[busy, "1 thread"])
        ours = "choice" in name
        yield Row(section="threads", case="beside a busy process" if busy else "quiet", what=name,
                  value=statistics.median(speeds), low=min(speeds), high=max(speeds), unit="tokens/s",
                  ratio=statistics.median(speeds) / one, bar=BUSY_BAR if busy and ours else None,
                  note="ratio: to one thread")  # fmt: skip


def tokens_per_second(threads: int, environment: dict[str, str], seconds: float) -> float:
    clean = {name: value for name, value in os.environ.items() if name not in SPINNING}
    line = [sys.executable, "-c", PROGRAM, str(threads), str(seconds)]
    return float(subprocess.run(line, env=clean | environment, capture_output=True, text=True, check=True).stdout)


@contextmanager
def busy_process(wanted: bool) -> Iterator[None]:
    """Another process that uses one core all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()
