"""Prompts of different lengths continued together: new tokens per second of the whole batch, beside transformers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from transformer_lib.bench.models import SIZES, made, ours, transformers_llama
from transformer_lib.bench.report import Row, rate_row
from transformer_lib.bench.timing import in_turns
from transformer_lib.generation import generate

BATCHES = (1, 4, 16, 64)
LONGEST, NEW = 32, 48


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    name = "S" if options.quick else "M"
    model, (peer, missing) = ours(SIZES[name].config).eval(), made(transformers_llama, SIZES[name].config)
    runs = {}
    for n in BATCHES:
        ids, keep = prompts(model.cfg.vocab_size, n)
        runs[n, "this library"] = lambda ids=ids, keep=keep: generate(model, ids, max_new_tokens=NEW, padding_mask=keep)
        if peer is not None:
            runs[n, "transformers"] = lambda ids=ids, keep=keep: continued_by(peer.eval(), ids, keep)
    times = in_turns(runs, options.rounds, options.clock)
    for (n, what), time in times.items():
        where = {"section": "batch", "case": f"{name}, {n} prompts of up to {LONGEST} tokens", "what": what}
        if what == "this library":
            note = f"{n * times[1, what].over(time):.2f} times one prompt alone"
            yield rate_row(time, n * NEW, "tokens/s", **where, note=note)
        else:
            yield rate_row(time, n * NEW, "tokens/s", **where, ratio=time.over(times[n, "this library"]))
    if missing:
        yield Row(section="batch", case=name, what="transformers", note=missing)


def prompts(vocab_size: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n prompts of lengths spread from 1 to LONGEST, padded on the left: ids (n, LONGEST), and which are real."""
    lengths = torch.linspace(1, LONGEST, n).long() if n > 1 else torch.tensor([LONGEST])  # (n,)
    keep = torch.arange(LONGEST) >= LONGEST - lengths[:, None]  # (n, T)
    return torch.randint(0, vocab_size, (n, LONGEST)), keep  # (n, T) each


@torch.no_grad()
def continued_by(peer, ids, keep) -> None:
    peer.generate(ids, attention_mask=keep.long(), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
