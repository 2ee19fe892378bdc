"""Lesson 11: the relatives on the same stories, with the same number of (active) parameters and of steps.

`loss` is the next-token loss on whole fresh stories, `loss_windows` that on short windows which begin with one. Models
that see both sides have neither: `bound` (masked diffusion) is an upper bound of the latter, for one token more;
`loss_hidden` (masked encoder) is the loss of single hidden words in the same windows, a much easier task that is not to
be compared.

These models are slow learners, for each row teaches only what is hidden in it. They train on as many tokens per step,
but in short windows, which are more rows; with a larger start and a longer memory of squared gradients, as found by
trying (400 steps: a bound of 4.2 in place of 5.3, where token frequencies alone give 5.4); and masked diffusion once
more for three times the steps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments import stories as data
from transformer_lib.experiments.stories import LLAMA, build, fit, fresh_loss, sample, training_of, with_parameters
from transformer_lib.losses import cross_entropy
from transformer_lib.model import Model, Transformer
from transformer_lib.recording import record
from transformer_lib.relatives.counting import count
from transformer_lib.relatives.diffusion import diffusion_bound, diffusion_loss, unmask
from transformer_lib.relatives.masked_encoder import MaskedTransformer, mask_tokens, masked_loss
from transformer_lib.relatives.moe import MoEConfig, MoETransformer, expert_load, moe_loss
from transformer_lib.relatives.ssm import SSMConfig, SSMTransformer
from transformer_lib.training import TrainConfig, mean_loss, next_token_loss

TITLE = "A Transformer, a mixture of experts, a state-space model, a masked encoder and masked diffusion"
# One more id: the mask. A position table: where all tokens are masks, RoPE and attention give every place the same sum.
BOTH_SIDES = LLAMA.replace(causal=False, vocab_size=LLAMA.vocab_size + 1, positions="learned")
SHARED = {
    name: getattr(LLAMA, name)
    for name in ("vocab_size", "d_model", "n_layers", "d_ff", "max_seq_len", "tie_embeddings")
}
MODELS: dict[str, tuple[type[Model], TransformerConfig]] = {
    "transformer": (Transformer, LLAMA),
    "mixture of experts": (MoETransformer, MoEConfig(**vars(LLAMA), n_experts=8, n_active=2)),
    "state space": (SSMTransformer, SSMConfig(**SHARED, d_inner=192, d_state=8)),
    "masked encoder": (MaskedTransformer, BOTH_SIDES),
    "masked diffusion": (MaskedTransformer, BOTH_SIDES),
}
LOSSES = {"mixture of experts": moe_loss, "masked encoder": masked_loss, "masked diffusion": diffusion_loss}
LONGER = "masked diffusion, 3 × the steps"
VARIANTS = (*MODELS, LONGER)
WINDOW = 40  # tokens that the models which see both sides learn from and write
SECONDS = 60


def base(variant: str) -> str:
    """The model's name, without what is special about its training."""
    return variant.partition(",")[0]


@cache
def model_of(variant: str) -> tuple[type[Model], TransformerConfig]:
    kind, cfg = MODELS[base(variant)]
    return kind, with_parameters(kind, cfg, count(Transformer(LLAMA)).parameters, active=True)


def training(variant: str, steps: int | None, seed: int = 0) -> TrainConfig:
    if MODELS[base(variant)][0] is not MaskedTransformer:
        return training_of(steps, seed=seed)
    config = training_of(steps, seed=seed, batch_size=32, betas=(0.9, 0.99))
    return replace(config, steps=3 * config.steps) if variant == LONGER else config


def short_windows(step: int, config: TrainConfig) -> Tensor:
    """As the stories' batches, but (B, WINDOW)."""
    return data.stories().batches(step, config)[:, :WINDOW]


def recipe(variant: str, steps: int | None) -> str:
    return f"{model_of(variant)[1]} {training(variant, steps)} windows of {WINDOW}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model, batches = build(*model_of(variant), seed), None
    if isinstance(model, MaskedTransformer):
        batches = short_windows
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.initialize(std=0.05)
    result = fit(model, training(variant, steps, seed), LOSSES.get(base(variant), next_token_loss), batches)
    return result | MEASURES.get(base(variant), measure_causal)(model, seed)


def measure_causal(model: Model, seed: int) -> dict:
    in_windows = mean_loss(model, windows().split(50))
    return {"loss": fresh_loss(model), "loss_windows": in_windows, "sample": sample(model, seed=seed)}


def measure_experts(model: MoETransformer, seed: int) -> dict:
    """expert_load: per block, the share of all choices that fell on each expert."""
    with record(model) as seen, torch.no_grad():
        model(data.stories().fresh[:50])
    loads = [
        expert_load(seen[f"blocks.{i}.mlp.chosen"], model.cfg.n_experts).tolist() for i in range(model.cfg.n_layers)
    ]
    return measure_causal(model, seed) | {"expert_load": loads}


def windows() -> Tensor:
    """Fresh text: rows that begin with a story, and go on into the next where it is short, (N, WINDOW + 1)."""
    ids, counts = data.stories().fresh, data.stories().counts
    text = ids[counts]  # one story after the other, each with its newline
    starts = counts.sum(dim=1).cumsum(dim=0)[::2]  # (N,): where every second story begins
    starts = starts[starts + WINDOW < len(text)]
    return text[starts[:, None] + torch.arange(WINDOW + 1)]  # (N, WINDOW + 1)


@torch.no_grad()
def measure_encoder(model: MaskedTransformer, seed: int) -> dict:
    """sample: the beginning of a fresh story, each chosen word as [what was hidden → what the model says]."""
    ids = windows()[:, :WINDOW]  # (N, T)
    corrupted, chosen = mask_tokens(ids, model.mask_id, generator=torch.Generator().manual_seed(seed))
    logits = model(corrupted)  # (N, T, V)
    guesses = logits.argmax(dim=-1)  # (N, T)
    right = (guesses == ids)[chosen]
    truth, guess = pieces_of(ids[0]), pieces_of(guesses[0])
    words = [f"[{truth[i]} → {guess[i]}]" if chosen[0, i] else truth[i] for i in range(WINDOW)]
    return {
        "loss_hidden": float(cross_entropy(logits, ids, chosen)),
        "accuracy_hidden": float(right.float().mean()),
        "sample": " ".join(words),
    }


def measure_diffusion(model: MaskedTransformer, seed: int) -> dict:
    """bound: nats per token. film: the words of the sample, and in which step of unmasking each was uncovered."""
    bound = diffusion_bound(model, windows()[:, :WINDOW], draws=16, generator=torch.Generator().manual_seed(seed))
    uncovered = torch.zeros(WINDOW, dtype=torch.int64)

    def on_step(step: int, ids: Tensor, revealed: Tensor) -> None:
        uncovered[revealed[0]] = step + 1

    start = torch.full((1, WINDOW), model.mask_id)
    written = unmask(model, start, steps=WINDOW // 2, temperature=0.8, seed=seed, on_step=on_step)[0]
    film = {"words": pieces_of(written), "steps": uncovered.tolist()}
    return {"bound": float(bound.mean()), "sample": data.stories().tokenizer.decode(written.tolist()), "film": film}


def pieces_of(ids: Tensor) -> list[str]:
    """Each id as a text of its own: ids (T,)."""
    return [data.stories().tokenizer.decode([i]).strip() or "·" for i in ids.tolist()]


MEASURES = {
    "mixture of experts": measure_experts,
    "masked encoder": measure_encoder,
    "masked diffusion": measure_diffusion,
}
