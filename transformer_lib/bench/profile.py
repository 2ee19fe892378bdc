"""Where the time of a step goes: says how much there is to win beside the products that every library does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from transformer_lib.bench import prefill, train
from transformer_lib.bench.models import SIZES
from transformer_lib.bench.report import Row

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
KERNEL = "aten::_scaled_dot_product_flash_attention"


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds."""
    for name in ("S",) if options.quick else ("S", "M"):
        size = SIZES[name]
        for kind, cfg in (("Llama-shaped", size.config), ("GPT-2-shaped", size.gpt2())):
            runs, _ = train.candidates(kind, cfg, size)
            runs.pop(train.BF16, None)
            yield from profiled(f"training, {name}, {kind}", runs, options.rounds)
    runs, _ = prefill.candidates(size.config, torch.randint(0, size.config.vocab_size, (1, prefill.TOKENS)))
    yield from profiled(f"reading {prefill.TOKENS:,} tokens, {name}", runs, options.rounds)


def profiled(case: str, runs: dict[str, Callable], rounds: int) -> Iterator[Row]:
    for what, step in runs.items():
        yield parts(step, rounds, section="profile", case=case, what=what)


def parts(step: Callable, rounds: int, **where) -> Row:
    """A row with the milliseconds of a step, and in its note those of each part, means over the rounds."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(rounds):
            step()
    found = {"matrix products": 0.0, "attention's kernel": 0.0, "all else": 0.0}
    for event in seen.key_averages():
        part = "matrix products" if event.key in PRODUCTS else "all else"
        part = "attention's kernel" if event.key.startswith(KERNEL) else part
        found[part] += event.self_cpu_time_total / 1e3 / rounds
    note = ", ".join(f"{part} {milliseconds:,.0f}" for part, milliseconds in found.items())
    return Row(**where, value=sum(found.values()), unit="ms", note=note)
