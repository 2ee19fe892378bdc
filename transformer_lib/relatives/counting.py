"""One way to count every relative: parameters, those that a token meets, and the memory that decoding needs.

The memory is not computed from a formula but read from the cache objects that the model makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from transformer_lib.model import Model


@dataclass(frozen=True)
class Counts:
    """parameters: stored. active_parameters: used by one token.

    growing, fixed: bytes of the cache of one sequence, per token and in any case; None for a model that cannot use a
    cache. An encoder-decoder also keeps the keys and values of its source, as many bytes per source token: not counted.
    """

    parameters: int
    active_parameters: int
    growing: int | None
    fixed: int | None


def count(model: Model) -> Counts:
    """The counts of any model of this library."""
    parameters = sum(weight.numel() for weight in model.parameters())  # a tied table is one parameter, counted once
    growing, fixed = bytes_per_token(model) if model.cfg.causal else (None, None)
    return Counts(parameters, parameters - inactive_parameters(model), growing, fixed)


def inactive_parameters(model: nn.Module) -> int:
    """Parameters that a token does not use: 0, except for a model that has its own word on it (`moe.py`)."""
    return model.inactive_parameters() if hasattr(model, "inactive_parameters") else 0


def bytes_per_token(model: Model, batch_size: int = 1) -> tuple[int, int]:
    """(bytes per token, bytes in any case) of one sequence's cache, from two caches of different lengths."""
    short, long = (model.new_cache(batch_size, length).nbytes // batch_size for length in (1, 2))
    return long - short, short - (long - short)
