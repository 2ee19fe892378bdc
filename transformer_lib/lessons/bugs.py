"""Famous bugs of Transformer code, each as a named switch: learners turn one on and look for the check that sees it.

    with bugs.divide_by_d_model(model):     # in the layers of this model alone
        model(ids)
    with bugs.divide_by_d_model():          # in every model

The mutation test uses the same switches: for each bug there must be a test that fails while it is on. Inside the block
the real library code runs with one thing changed; at its end everything is as before, whatever happened inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from transformer_lib.attention import MultiHeadAttention, causal_mask
from transformer_lib.model import Block, Model
from transformer_lib.norms import LayerNorm, RMSNorm

BUGS: dict[str, Bug] = {}


@dataclass(frozen=True)
class Bug:
    """A switch. name: as in `bugs.<name>`; sentence: what is wrong, in one sentence; lesson: the notebook's number."""

    name: str
    sentence: str
    lesson: int
    switch: Callable[[nn.Module | None], AbstractContextManager]

    def __call__(self, model: nn.Module | None = None) -> AbstractContextManager:
        """Use it in a `with` statement: the bug is on in the layers of `model`, or everywhere without one."""
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"bugs.{self.name}(model) takes a model, or nothing; got {type(model).__name__}.")
        return self.switch(model)


def bug(sentence: str, lesson: int) -> Callable[[Callable], Bug]:
    """Register a generator function of one argument, the model or None, as the bug of its name."""

    def register(function: Callable[[nn.Module | None], Iterator[None]]) -> Bug:
        BUGS[function.__name__] = Bug(function.__name__, sentence, lesson, contextmanager(function))
        return BUGS[function.__name__]

    return register


@contextmanager
def replaced(layer: type[nn.Module], method: str, broken: Callable, model: nn.Module | None) -> Iterator[None]:
    """`layer.method` runs as `broken(original, self, *arguments)`, in the layers of `model` alone if one is given."""
    original = getattr(layer, method)
    chosen = None if model is None else set(model.modules())

    def either(self, *arguments, **named):
        if chosen is None or self in chosen:
            return broken(original, self, *arguments, **named)
        return original(self, *arguments, **named)

    setattr(layer, method, either)
    try:
        yield
    finally:
        setattr(layer, method, original)


@bug("Scores are divided by √d_model, the width of the stream, instead of √d_k, the width of a head.", lesson=3)
def divide_by_d_model(model):
    def attend(original, self, *arguments):
        right, self.scale = self.scale, 1 / math.sqrt(self.w_q.in_features)
        try:
            return original(self, *arguments)
        finally:
            self.scale = right

    with replaced(MultiHeadAttention, "attend", attend, model):
        yield


@bug("The norms add eps outside the root, to the standard deviation, instead of inside, to the variance.", lesson=6)
def eps_outside_the_root(model):
    def outside(original, self, x):
        centred = x.float() - x.float().mean(dim=-1, keepdim=True) if isinstance(self, LayerNorm) else x.float()
        size = centred.pow(2).mean(dim=-1, keepdim=True).sqrt()  # (…, 1)
        scaled = (centred / (size + self.eps)).to(x.dtype) * self.weight
        return scaled + self.bias if isinstance(self, LayerNorm) else scaled

    with replaced(LayerNorm, "forward", outside, model), replaced(RMSNorm, "forward", outside, model):
        yield


@bug("Pre-norm code that overwrites the stream with its norm before it adds to it.", lesson=6)
def norm_on_the_stream(model):
    def sublayer(original, self, name, norm, run, x):
        if not self.pre_norm:
            return original(self, name, norm, run, x)
        x = self.tap(f"{name}.norm", norm(x))
        return self.add(x, run(x))

    with replaced(Block, "sublayer", sublayer, model):
        yield


@bug("With a cache, the causal mask is aligned at the top left: a single new token sees only the first key.", lesson=10)
def top_left_mask(model):
    def visible(original, self, t_q, t_k, causal, keep, device):
        mask, is_causal = original(self, t_q, t_k, causal, keep, device)
        if not causal or t_q == t_k:  # as many queries as keys: both corners are one
            return mask, is_causal
        seen = torch.ones(t_q, t_k, dtype=torch.bool, device=device).tril()  # (T_q, T_k)
        if mask is None or mask.dtype == torch.bool:
            return (seen if mask is None else mask & seen), False
        return mask.masked_fill(~seen, -math.inf), False

    with replaced(Model, "visible", visible, model):
        yield


@bug("RoPE counts positions from 0 in every chunk, not from the number of tokens in the cache.", lesson=10)
def missing_rope_offset(model):
    def rotation(original, self, positions):
        return original(self, positions - positions[..., :1])

    with replaced(Model, "rotation", rotation, model):
        yield


@bug(
    "Hidden scores are lowered by 10,000 instead of set to −∞: a score that is larger by more than that shows.",
    lesson=5,
)
def mask_with_minus_1e4(model):
    def attend(original, self, q, k, v, mask, causal):
        if causal:
            mask = causal_mask(q.shape[-2], k.shape[-2], q.device)  # (T_q, T_k)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -1e4)
        return original(self, q, k, v, mask, False)

    with replaced(MultiHeadAttention, "attend", attend, model):
        yield
