"""The loss: how surprised the model is by what really came, in nats per token.

Every mean here is taken over the tokens that count, and the mask is applied before it, never after.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_lib import fused
from transformer_lib.checks import check_ids_range, check_keep


def masked_mean(values: Tensor, keep: Tensor | None = None) -> Tensor:
    """The mean of `values` where `keep` (bool, the same shape) is True: a scalar. 0, not 0 / 0, if nothing counts."""
    if keep is None:
        return values.mean()
    if keep.shape != values.shape:
        raise ValueError(f"keep must have the shape of the values, {tuple(values.shape)}; got {tuple(keep.shape)}.")
    # `where` and not a product: a value that does not count may be infinite, and 0 · ∞ is no number.
    return torch.where(keep, values, 0).sum() / keep.sum().clamp(min=1)


def token_losses(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """−ln p(target) at every position, against smoothed targets if asked (Szegedy et al., 2016, section 7).

    logits: (…, V) of finite numbers; targets: (…), int64; returns (…).
    label_smoothing ε: the target gets 1 − ε of the probability, and ε is shared equally by all V entries. The 2017
    paper (section 5.4) takes ε = 0.1: the loss then never reaches 0, and the model stays less sure of itself.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be at least 0 and below 1; got {label_smoothing!r}.")
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} do not fit targets of {tuple(targets.shape)}.")
    check_ids_range(targets, logits.shape[-1])
    if label_smoothing == 0 and logits.dtype == torch.float32:
        return fused.Surprise.apply(logits, targets)  # (…): the lines below, with a gradient of our own
    # log_softmax, and not the log of a softmax: a probability too small for a float would be ln 0.
    log_p = torch.log_softmax(logits, dim=-1)  # (…, V)
    surprise = -log_p.gather(-1, targets[..., None]).squeeze(-1)  # (…)
    if label_smoothing == 0:
        return surprise
    return (1 - label_smoothing) * surprise - label_smoothing * log_p.mean(dim=-1)  # (…)


def cross_entropy(logits: Tensor, targets: Tensor, keep: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
    """The mean loss over the tokens that count, a scalar. keep: bool of the targets' shape, True = counts."""
    return masked_mean(token_losses(logits, targets, label_smoothing), keep)


def next_token_loss(model: nn.Module, batch) -> Tensor:
    """A language model's loss. batch: ids (B, T + 1), or (ids, mask) with the mask True where a target counts."""
    parts = batch if isinstance(batch, (tuple, list)) else (batch, None)
    if len(parts) != 2 or parts[0].dim() != 2:
        got = ", ".join(str(tuple(part.shape)) for part in parts if part is not None)
        raise ValueError(f"a batch must be ids of shape (B, T + 1), or such ids and a mask; got the shapes {got}.")
    ids, mask = parts
    check_keep(mask, ids, "mask")
    return cross_entropy(model(ids[:, :-1]), ids[:, 1:], None if mask is None else mask[:, 1:])
