"""What enters a model is checked once, at the door: one sentence says what was wrong and what to do."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from transformer_lib.config import TransformerConfig


def is_whole(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(name: str, value) -> None:
    """Refuse what is not a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")


def check_ids(ids, cfg: TransformerConfig, cache=None, name: str = "ids") -> None:
    """Refuse ids that are not (B, T) int64 with values below cfg.vocab_size, or that do not fit cfg.max_seq_len."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a torch tensor of shape (B, T); got {type(ids).__name__}.")
    if ids.dtype != torch.int64:
        raise TypeError(f"{name} must be int64; got {ids.dtype}; use {name}.long().")
    if ids.dim() != 2:
        raise ValueError(f"{name} must have shape (B, T); got {tuple(ids.shape)}; for one sequence use {name}[None].")
    if ids.numel() == 0:
        raise ValueError(f"{name} must hold at least one token per row; got shape {tuple(ids.shape)}.")
    start = 0 if cache is None else cache.length
    if start + ids.shape[1] > cfg.max_seq_len:
        before = f" after {start} in the cache" if start else ""
        raise ValueError(
            f"{ids.shape[1]} tokens{before} are more than max_seq_len={cfg.max_seq_len}; "
            f"shorten the text, or build the model with cfg.replace(max_seq_len=…)."
        )
    # A GPU would have to be waited for, at every token; it reports ids out of range by itself.
    if ids.device.type == "cpu":
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= cfg.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"id {wrong} is not in the vocabulary: ids must be from 0 to {cfg.vocab_size - 1}.")


def check_keep(keep, ids: Tensor, name: str) -> None:
    """Refuse a padding mask that is not bool of the shape of ids."""
    if keep is None:
        return
    if not isinstance(keep, Tensor) or keep.dtype != torch.bool:
        got = keep.dtype if isinstance(keep, Tensor) else type(keep).__name__
        raise TypeError(f"{name} must be a bool tensor, True = a real token; got {got}.")
    if keep.shape != ids.shape:
        raise ValueError(
            f"{name} must have the shape of the ids it belongs to, {tuple(ids.shape)}; got {tuple(keep.shape)}."
        )
