"""Where the time of a training step goes: says how much there is to win beside the products that every library does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.profiler import ProfilerActivity, profile

from transformer_lib.bench.models import SIZES
from transformer_lib.bench.report import Row
from transformer_lib.bench.train import BF16, candidates

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
KERNEL = "aten::_scaled_dot_product_flash_attention"


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds."""
    for name in ("S",) if options.quick else ("S", "M"):
        size = SIZES[name]
        for kind, cfg in (("Llama-shaped", size.config), ("GPT-2-shaped", size.gpt2())):
            runs, _ = candidates(kind, cfg, size)
            for what, step in runs.items():
                if what != BF16:
                    yield parts(step, options.rounds, section="profile", case=f"{name}, {kind}", what=what)


def parts(step: Callable[[], None], rounds: int, **where) -> Row:
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
