"""The masked encoder: hide some words, let the model see both sides, and ask for what was hidden.

BERT (Devlin et al., 2018), section 3.1. The model is the same stack of blocks with causal=False and one more id, the
mask. Its loss counts only the hidden positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.losses import cross_entropy
from transformer_lib.model import Transformer


class MaskedTransformer(Transformer):
    """A Transformer without the causal mask, whose last id, `mask_id`, stands for a hidden token.

    cfg.vocab_size counts the mask: the tokenizer's ids and one more.
    model(ids): (B, T) int64 -> logits (B, T, V - 1): the mask itself is never predicted.
    """

    def __init__(self, cfg: TransformerConfig):
        if cfg.causal:
            raise ValueError("a masked model sees both sides: it needs a config with causal=False.")
        super().__init__(cfg)
        self.mask_id = cfg.vocab_size - 1

    def forward(self, ids: Tensor, padding_mask: Tensor | None = None, cache=None) -> Tensor:
        return super().forward(ids, padding_mask, cache)[..., : self.mask_id]  # (B, T, V - 1)


def mask_tokens(
    ids: Tensor, mask_id: int, share: float = 0.15, keep: Tensor | None = None, generator=None
) -> tuple[Tensor, Tensor]:
    """Choose about `share` of the tokens to be predicted; returns the corrupted ids and which were chosen, (B, T) each.

    Of the chosen, 80% become the mask, 10% a random token and 10% stay, for in later use no token is masked, and the
    model must build a vector for every word. keep: (B, T) bool, False = padding, never chosen.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1; got {share!r}.")
    chosen = torch.rand(ids.shape, generator=generator, device=ids.device) < share  # (B, T)
    if keep is not None:
        chosen &= keep
    fate = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
    random_ids = torch.randint(mask_id, ids.shape, generator=generator, device=ids.device)  # (B, T)
    corrupted = torch.where(chosen & (fate < 0.8), mask_id, ids)
    corrupted = torch.where(chosen & (fate >= 0.9), random_ids, corrupted)
    return corrupted, chosen


def masked_loss(
    model: MaskedTransformer, ids: Tensor, share: float = 0.15, keep: Tensor | None = None, generator=None
) -> Tensor:
    """Cross-entropy at the chosen positions alone, in nats per chosen token: a scalar. ids: (B, T) int64."""
    corrupted, chosen = mask_tokens(ids, model.mask_id, share, keep, generator)
    return cross_entropy(model(corrupted, keep), ids, chosen)


@torch.no_grad()
def fill_blank(model: MaskedTransformer, ids: Tensor, at: Tensor) -> Tensor:
    """Hide one token per row, at the places `at` (B,), and ask for it: probabilities (B, V - 1). ids: (B, T) int64."""
    rows, hidden = torch.arange(len(ids), device=ids.device), ids.clone()
    hidden[rows, at] = model.mask_id
    return torch.softmax(model(hidden)[rows, at], dim=-1)  # (B, T, V - 1) -> (B, V - 1)
