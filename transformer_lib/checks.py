"""What enters a model is checked once, at the door: one sentence says what was wrong and what to do."""

from __future__ import annotations

import psutil
import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.values import is_whole, shown


def check_whole(name: str, value) -> None:
    """Refuse what is not a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {shown(value)}.")


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
    check_ids_range(ids, cfg.vocab_size)


def check_ids_range(ids: Tensor, vocab_size: int) -> None:
    """Refuse ids that are not in the vocabulary."""
    # A GPU would have to be waited for, at every token; it reports ids out of range by itself.
    if ids.device.type == "cpu" and ids.numel():
        low, high = map(int, ids.aminmax())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"id {wrong} is not in the vocabulary: ids must be from 0 to {vocab_size - 1}.")


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


def check_memory(needed: int) -> None:
    """Refuse a model of `needed` bytes before it is built: a system without memory ends programs, and never answers."""
    free = psutil.virtual_memory().available
    if needed > free and torch.empty(0).device.type == "cpu":
        raise ValueError(
            f"A model of this shape takes {needed / 1e9:,.2f} GB of memory, and {free / 1e9:,.2f} GB are free: choose "
            f"a smaller one, or build it under torch.device('meta'), which takes none."
        )


# --- What enters a training ---


def check_trainable(model) -> None:
    if not isinstance(model, nn.Module) or not any(weight.requires_grad for weight in model.parameters()):
        raise TypeError(f"model must be a torch module with weights that can be trained; got {shown(model)}.")


def check_functions(optional: bool = False, **functions) -> None:
    for name, function in functions.items():
        if not callable(function) and not (optional and function is None):
            raise TypeError(f"{name} must be a function{' or None' * optional}; got {shown(function)}.")


def check_flags(**flags) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False; got {shown(flag)}.")


def check_batch(batch):
    """`batch`, a tensor or several; anything else is refused."""
    parts = [batch] if isinstance(batch, Tensor) else batch
    if not isinstance(parts, (tuple, list)) or not parts or not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(f"batches must give a tensor or a tuple of tensors; got {shown(batch)}.")
    return batch


def check_loss(loss) -> Tensor:
    """`loss`, one number that depends on the weights; anything else is refused."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point() or not loss.requires_grad:
        raise TypeError(f"loss_fn must return one number, as a tensor that depends on the weights; got {shown(loss)}.")
    return loss
