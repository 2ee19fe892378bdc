"""Lesson 11: the relatives on the same stories, with the same number of (active) parameters and of steps.

`loss` is the next-token loss on whole fresh stories, `loss_windows` that on windows which begin with one. Models that
see both sides have neither: `bound` (masked diffusion) is an upper bound of the latter, `loss_hidden` (masked encoder)
the loss of single hidden words in the same windows, a much easier task that is not to be compared.
"""

from __future__ import annotations

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
from transformer_lib.training import mean_loss, next_token_loss

TITLE = "A Transformer, a mixture of experts, a state-space model, a masked encoder and masked diffusion"
BOTH_SIDES = LLAMA.replace(causal=False, vocab_size=LLAMA.vocab_size + 1)  # one more id: the mask
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
VARIANTS = tuple(MODELS)
SECONDS = 70


def model_of(variant: str) -> tuple[type[Model], TransformerConfig]:
    kind, cfg = MODELS[variant]
    return kind, with_parameters(kind, cfg, count(Transformer(LLAMA)).parameters, active=True)


def recipe(variant: str, steps: int | None) -> str:
    return f"{model_of(variant)[1]} {training_of(steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = build(*model_of(variant), seed)
    result = fit(model, training_of(steps, seed=seed), LOSSES.get(variant, next_token_loss))
    return result | MEASURES.get(variant, measure_causal)(model, seed)


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
    """Fresh text as in training: rows that begin with a story and go on into the next, (N, CONTEXT + 1)."""
    ids, counts = data.stories().fresh, data.stories().counts
    text = ids[counts]  # one story after the other, each with its newline
    starts = counts.sum(dim=1).cumsum(dim=0)[:-2:2]  # (N,): where every second story begins
    return text[starts[:, None] + torch.arange(data.CONTEXT + 1)]  # (N, CONTEXT + 1)


@torch.no_grad()
def measure_encoder(model: MaskedTransformer, seed: int) -> dict:
    ids = windows()
    corrupted, chosen = mask_tokens(ids, model.mask_id, generator=torch.Generator().manual_seed(seed))
    logits = model(corrupted)  # (N, T, V)
    right = (logits.argmax(dim=-1) == ids)[chosen]
    return {"loss_hidden": float(cross_entropy(logits, ids, chosen)), "accuracy_hidden": float(right.float().mean())}


def measure_diffusion(model: MaskedTransformer, seed: int) -> dict:
    """bound: nats per token. steps_shown: the text after each of a few steps of unmasking, hidden tokens as "_"."""
    tokenizer, shown = data.stories().tokenizer, []
    bound = diffusion_bound(model, windows(), draws=16, generator=torch.Generator().manual_seed(seed))

    def on_step(step: int, ids: Tensor, revealed: Tensor) -> None:
        if (step + 1) % 8 == 0:
            pieces = [tokenizer.decode([i]) if i != model.mask_id else "_" for i in ids[0].tolist()]
            shown.append(" ".join(piece.strip() or "·" for piece in pieces))

    start = torch.full((1, 64), model.mask_id)
    written = unmask(model, start, steps=32, temperature=0.8, seed=seed, on_step=on_step)
    return {"bound": float(bound.mean()), "sample": tokenizer.decode(written[0].tolist()), "steps_shown": shown}


MEASURES = {
    "mixture of experts": measure_experts,
    "masked encoder": measure_encoder,
    "masked diffusion": measure_diffusion,
}
