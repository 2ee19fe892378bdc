"""Reading a prompt: its time beside that of its matrix products, and the memory that it takes beside its length."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from transformer_lib.accounting import flops_per_sequence
from transformer_lib.bench.ceilings import products
from transformer_lib.bench.models import SIZES, made, ours, transformers_llama
from transformer_lib.bench.report import Row, rate_row
from transformer_lib.bench.timing import in_turns

TOKENS, BAR = 2048, 1.2
LENGTHS = (512, 1024, 2048, 4096)
LINEAR_BAR = 2.5  # twice the tokens may take so many times the memory: below 4, which a T × T tensor would take


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    yield from compare("S" if options.quick else "M", options)
    yield from memory("S" if options.quick else "M", LENGTHS[:3] if options.quick else LENGTHS)


def compare(name: str, options) -> Iterator[Row]:
    cfg = SIZES[name].config
    runs, missing = candidates(cfg, torch.randint(0, cfg.vocab_size, (1, TOKENS)))
    runs["matrix products alone"], flops = products(cfg, TOKENS)
    times = in_turns(runs, options.rounds, options.clock)
    own, floor = times.pop("this library"), times.pop("matrix products alone")
    where = {"section": "prefill", "case": f"{name}, {TOKENS:,} tokens"}
    yield rate_row(own, TOKENS, "tokens/s", **where, what="this library")
    for what, time in times.items():
        yield rate_row(time, TOKENS, "tokens/s", **where, what=what, ratio=time.over(own))
    if missing:
        yield Row(**where, what="transformers Llama", note=missing)
    needed = flops_per_sequence(cfg, TOKENS).total - 2 * (TOKENS - 1) * cfg.vocab_size * cfg.d_model  # logits: of one
    ratio = own.over(floor) * flops / needed
    yield rate_row(
        floor, flops / 1e9, "GFLOP/s", **where, what="matrix products alone", ratio=ratio,
        bar=None if name == "S" else BAR, at_most=True,
        note="ratio: the prefill's time over that of its FLOPs, attention's included, at this rate",
    )  # fmt: skip


def candidates(cfg, ids: torch.Tensor) -> tuple[dict[str, Callable[[], object]], str]:
    """(name -> reading `ids` as generation does: with a cache, and logits for the last position alone; what lacks)."""
    model, (peer, missing) = ours(cfg).eval(), made(transformers_llama, cfg)
    cache = model.new_cache(*ids.shape)

    @torch.no_grad()
    def mine() -> None:
        cache.reset()
        model(ids, cache=cache, last_only=True)

    runs = {"this library": mine}
    if peer is not None:
        runs["transformers Llama"] = torch.no_grad()(lambda: peer.eval()(ids, use_cache=True, logits_to_keep=1))
    return runs, missing


def memory(name: str, lengths) -> Iterator[Row]:
    """Peak memory above that of the model itself, each length in a process of its own."""
    peaks = {length: peak_bytes(name, length) for length in lengths}
    for length, peak in peaks.items():
        half = peaks.get(length // 2)
        yield Row(
            section="prefill", case=f"{name}, peak memory", what=f"{length:,} tokens", value=peak / 1e6, unit="MB",
            ratio=peak / half if half else None, bar=LINEAR_BAR if length == max(peaks) else None, at_most=True,
            note="ratio: to half the tokens" if half else "above the model's own",
        )  # fmt: skip


PROGRAM = """
import sys, torch
from transformer_lib.bench.models import SIZES, ours
from transformer_lib.bench.prefill import most_memory
torch.set_num_threads(1)
model, length = ours(SIZES[sys.argv[1]].config).eval(), int(sys.argv[2])
with torch.no_grad():
    model(torch.zeros(1, 1, dtype=torch.int64), cache=model.new_cache(1, 1))
    before = most_memory(forget=True)
    model(torch.zeros(1, length, dtype=torch.int64), cache=model.new_cache(1, length), last_only=True)
print(most_memory() - before)
"""


def most_memory(forget: bool = False) -> int:
    """The most bytes that this process has held; on Linux, with forget=True, counted anew from what it holds now."""
    status, marks = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if status.exists() and marks.exists():
        if forget:
            marks.write_text("5")
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_bytes(name: str, length: int) -> int:
    line = [sys.executable, "-c", PROGRAM, name, str(length)]
    return int(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
