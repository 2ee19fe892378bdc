"""Prompts of different lengths continued together: new tokens per second of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from transformer_lib.bench.models import SIZES, ours
from transformer_lib.bench.report import Row, rate_row
from transformer_lib.bench.timing import in_turns
from transformer_lib.generation import generate

BATCHES = (1, 4, 16, 64)
LONGEST, NEW = 32, 48


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    name = "S" if options.quick else "M"
    model = ours(SIZES[name].config).eval()
    times = in_turns({f"{n} rows": continued(model, n) for n in BATCHES}, options.rounds, options.clock)
    for n, (what, time) in zip(BATCHES, times.items()):
        case = f"{name}, prompts of up to {LONGEST} tokens"
        ratio = n * times["1 rows"].over(time)
        yield rate_row(
            time, n * NEW, "tokens/s", section="batch", case=case, what=what, ratio=ratio, note="ratio: to one row"
        )


def continued(model, n: int):
    """A run that continues n prompts of lengths spread from 1 to LONGEST, padded on the left."""
    lengths = torch.linspace(1, LONGEST, n).long() if n > 1 else torch.tensor([LONGEST])  # (n,)
    keep = torch.arange(LONGEST) >= LONGEST - lengths[:, None]  # (n, T)
    ids = torch.randint(0, model.cfg.vocab_size, (n, LONGEST))  # (n, T)
    return lambda: generate(model, ids, max_new_tokens=NEW, padding_mask=keep)
