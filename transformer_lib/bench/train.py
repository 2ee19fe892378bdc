"""Training: tokens per second of whole steps (loss, gradient, clipping, AdamW), and their share of the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from transformer_lib.accounting import flops_per_sequence
from transformer_lib.bench.ceilings import products
from transformer_lib.bench.models import PEERS, SIZES, Size, made, ours
from transformer_lib.bench.report import Row, rate_row
from transformer_lib.bench.timing import in_turns
from transformer_lib.training import History, TextBatches, TrainConfig, make_optimizer, next_token_loss, one_step

BAR, CEILING_BAR = 1.15, 0.75
BF16 = "this library, bf16"


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    for name in ("S",) if options.quick else ("S", "M"):
        size = SIZES[name]
        for kind, cfg in (("Llama-shaped", size.config), ("GPT-2-shaped", size.gpt2())):
            yield from compare(f"{name}, {kind}", kind, cfg, size, options)


def candidates(kind: str, cfg, size: Size) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """(name -> one training step per call, name -> why it cannot be measured here)."""
    runs, missing = {"this library": steps(ours(cfg), size, next_token_loss)}, {}
    if kind == "Llama-shaped":
        runs[BF16] = steps(ours(cfg), size, next_token_loss, precision="bf16")
    for name, make in PEERS[kind].items():
        model, why = made(make, cfg)
        if model is None:
            missing[name] = why
        else:
            runs[name] = steps(model, size, plain_loss)
    return runs, missing


def compare(case: str, kind: str, cfg, size: Size, options) -> Iterator[Row]:
    runs, missing = candidates(kind, cfg, size)
    runs["matrix products alone"], flops = products(cfg, size.batch_size * size.context)
    times = in_turns(runs, options.rounds, options.clock)
    mine, ceiling = times.pop("this library"), times.pop("matrix products alone")
    tokens, where = size.batch_size * size.context, {"section": "train", "case": case}
    yield rate_row(mine, tokens, "tokens/s", **where, what="this library")
    for name, time in times.items():
        if name == BF16:
            yield rate_row(
                time, tokens, "tokens/s", **where, what=name, ratio=mine.over(time), note="ratio: to float32"
            )
        else:
            yield rate_row(time, tokens, "tokens/s", **where, what=name, ratio=time.over(mine), bar=BAR)
    yield from (Row(**where, what=name, note=why) for name, why in missing.items())
    # A step is worth three forward passes: each product has two more in the backward pass.
    share = 3 * size.batch_size * flops_per_sequence(cfg, size.context).total / flops / mine.over(ceiling)
    yield rate_row(
        ceiling, flops / 1e9, "GFLOP/s", **where, what="matrix products alone", ratio=share,
        bar=CEILING_BAR if case.startswith("M") else None, note="ratio: the share of it that a training step reaches",
    )  # fmt: skip


def steps(model: nn.Module, size: Size, loss_fn: Callable, **how) -> Callable[[], None]:
    """One training step per call, as `train` does it."""
    config = TrainConfig(steps=10**6, batch_size=size.batch_size, warmup_steps=0, learning_rate=1e-4, **how)
    ids = torch.randint(0, 500, (20_000,), generator=torch.Generator().manual_seed(0))
    batches, optimizer, history = TextBatches(ids, size.context), make_optimizer(model, config), History()
    model.train()
    return lambda: one_step(model, optimizer, batches, loss_fn, config, history, torch.device("cpu"))


def plain_loss(model: nn.Module, batch) -> torch.Tensor:
    """For the peers: torch's own cross-entropy."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
