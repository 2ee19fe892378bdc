"""Masked diffusion: a language model without a causal mask, which writes by uncovering hidden tokens in any order.

LLaDA (Nie et al., 2025), section 2, and MDLM (Sahoo et al., 2024), section 3. Noise is masking: at time t each token is
hidden with probability t. The model learns to undo it for every t, so it can start from nothing but masks (t = 1) and
arrive at text (t = 0). It is the masked encoder, trained at all masking ratios instead of one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_lib.generation import next_token_probabilities
from transformer_lib.losses import token_losses
from transformer_lib.relatives.masked_encoder import MaskedTransformer


def hide(ids: Tensor, t: Tensor, mask_id: int, generator=None) -> tuple[Tensor, Tensor]:
    """Hide each token with probability t (B,) of its row; returns the noisy ids and what is hidden, (B, T) each."""
    hidden = torch.rand(ids.shape, generator=generator, device=ids.device) < t[:, None]  # (B, T)
    return torch.where(hidden, mask_id, ids), hidden


def diffusion_loss(model: MaskedTransformer, ids: Tensor, generator=None) -> Tensor:
    """A random estimate of an upper bound of −ln p(ids), in nats per token: a scalar. ids: (B, T) int64.

    E over t of (1 / t) Σ_hidden −ln p(token | what is not hidden). The weight 1 / t makes it a bound: a row of which
    half is hidden counts its losses twice. The rows' times are spread evenly over (0, 1]: less variance.
    """
    rows = torch.arange(len(ids), device=ids.device)
    start = torch.rand(1, generator=generator, device=ids.device)
    t = 1 - (start + rows / len(ids)) % 1  # (B,), in (0, 1]
    noisy, hidden = hide(ids, t, model.mask_id, generator)
    losses = token_losses(model(noisy), ids)  # (B, T)
    return (torch.where(hidden, losses, 0) / t[:, None]).mean()


@torch.no_grad()
def diffusion_bound(model: MaskedTransformer, ids: Tensor, draws: int = 16, generator=None) -> Tensor:
    """The same bound with less noise, for measuring: nats per token of each row, (B,).

    Hides exactly l tokens, with l from 1 to T equally likely. Then the weight is 1 / l, which makes the bound the mean
    loss of the hidden tokens (Nie et al., 2025, appendix A.2). With draws = T, each l comes once.
    """
    length = ids.shape[1]
    total = torch.zeros(len(ids), device=ids.device)
    for draw in range(draws):
        count = 1 + int((draw + torch.rand(1, generator=generator)) * length / draws)  # strata of 1 … T
        order = torch.rand(ids.shape, generator=generator, device=ids.device).argsort(dim=1)  # (B, T)
        hidden = order < count  # (B, T): exactly `count` in each row
        losses = token_losses(model(torch.where(hidden, model.mask_id, ids)), ids)  # (B, T)
        total += torch.where(hidden, losses, 0).sum(dim=1) / count
    return total / draws


@torch.inference_mode()
def unmask(
    model: MaskedTransformer,
    ids: Tensor,
    *,
    steps: int,
    temperature: float = 1.0,
    order: str = "confidence",
    seed: int | None = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Tensor:
    """Uncover every masked position of `ids` in `steps` steps; returns the full ids, (B, T).

    ids: (B, T) int64 with model.mask_id wherever something is to be written: after a prompt, in a gap, or everywhere.
    Each step draws a token for every hidden position, keeps its share of them and hides the rest again.
    order: "confidence" keeps those of which the model is surest (Nie et al., 2025, section 2.4); "random" any, as the
    bound assumes. temperature 0 takes the likeliest token.
    on_step(step, ids, revealed): called after each step with the ids so far and which positions it uncovered, (B, T).
    """
    if order not in ("confidence", "random"):
        raise ValueError(f"order must be 'confidence' or 'random'; got {order!r}.")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1; got {steps!r}.")
    generator = torch.Generator(ids.device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    was_training = model.training
    model.eval()
    try:
        for step in range(steps):
            hidden = ids == model.mask_id  # (B, T)
            drawn, confidence = draw_everywhere(model(ids), temperature, generator)  # (B, T) each
            if order == "random":
                confidence = torch.rand(ids.shape, generator=generator, device=ids.device)
            count = -(-hidden.sum(dim=1) // (steps - step))  # (B,): an equal share of what is left, rounded up
            rank = confidence.masked_fill(~hidden, -1).argsort(dim=1, descending=True).argsort(dim=1)  # (B, T)
            revealed = hidden & (rank < count[:, None])
            ids = torch.where(revealed, drawn, ids)
            if on_step is not None:
                on_step(step, ids, revealed)
    finally:
        model.train(was_training)
    return ids


def draw_everywhere(logits: Tensor, temperature: float, generator) -> tuple[Tensor, Tensor]:
    """A token for every position and the model's probability of it: logits (B, T, V) -> (B, T) each."""
    probabilities = next_token_probabilities(logits, temperature)  # (B, T, V)
    drawn = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(logits.shape[:2])  # (B, T)
    confidence = logits.softmax(dim=-1).gather(-1, drawn[..., None]).squeeze(-1)  # (B, T)
    return drawn, confidence
