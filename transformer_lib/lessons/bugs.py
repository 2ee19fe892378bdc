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
from transformer_lib.mlp import SwiGLU
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


@contextmanager
def attributes(module: nn.Module, **values) -> Iterator[None]:
    """Other values for some attributes of a module, inside the block."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@bug("Scores are divided by √d_model, the width of the stream, instead of √d_k, the width of a head.", lesson=3)
def divide_by_d_model(model):
    def attend(original, self, *arguments):
        with attributes(self, scale=1 / math.sqrt(self.w_q.in_features)):
            return original(self, *arguments)

    with replaced(MultiHeadAttention, "attend", attend, model):
        yield


def renormed(size_of: Callable[[torch.Tensor, float], torch.Tensor]) -> Callable:
    """A norm that divides by another size: size_of(centred, eps), (…, d) -> (…, 1)."""

    def forward(original, self, x):
        centred = x.float() - x.float().mean(dim=-1, keepdim=True) if isinstance(self, LayerNorm) else x.float()
        scaled = (centred / size_of(centred, self.eps)).to(x.dtype) * self.weight
        return scaled + self.bias if isinstance(self, LayerNorm) else scaled

    return forward


@bug("The norms add eps outside the root, to the standard deviation, instead of inside, to the variance.", lesson=6)
def eps_outside_the_root(model):
    outside = renormed(lambda centred, eps: centred.pow(2).mean(dim=-1, keepdim=True).sqrt() + eps)
    with replaced(LayerNorm, "forward", outside, model), replaced(RMSNorm, "forward", outside, model):
        yield


@bug("LayerNorm takes the unbiased variance, a sum divided by d − 1, as torch's `std` does by default.", lesson=6)
def unbiased_variance(model):
    unbiased = renormed(lambda centred, eps: (centred.var(dim=-1, keepdim=True) + eps).sqrt())
    with replaced(LayerNorm, "forward", unbiased, model):
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


def seeing(seen: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, bool]:
    """What `Model.visible` returns when, of what `mask` lets through, only `seen` (T_q, T_k) stays."""
    if mask is None or mask.dtype == torch.bool:
        return (seen if mask is None else mask & seen), False
    return mask.masked_fill(~seen, -math.inf), False


@bug("With a cache, the causal mask is aligned at the top left: a single new token sees only the first key.", lesson=10)
def top_left_mask(model):
    def visible(original, self, t_q, t_k, causal, keep, device):
        mask, is_causal = original(self, t_q, t_k, causal, keep, device)
        if not causal or t_q == t_k:  # as many queries as keys: both corners are one
            return mask, is_causal
        return seeing(torch.ones(t_q, t_k, dtype=torch.bool, device=device).tril(), mask)

    with replaced(Model, "visible", visible, model):
        yield


@bug("The causal mask is one diagonal too generous: each token sees the next one, which it is to predict.", lesson=5)
def mask_off_by_one(model):
    def visible(original, self, t_q, t_k, causal, keep, device):
        mask, is_causal = original(self, t_q, t_k, False, keep, device)
        if not causal:
            return mask, is_causal
        return seeing(torch.ones(t_q, t_k, dtype=torch.bool, device=device).tril(t_k - t_q + 1), mask)

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


def attending(weights_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable:
    """Attention with other weights: weights_of(scores, mask), both (B, H, T_q, T_k), mask bool, True = visible."""

    def attend(original, self, q, k, v, mask, causal):
        group = self.n_heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # (B, H, T_k, d_k)
        scores = self.tap("scores", q @ k.transpose(-2, -1) * self.scale)  # (B, H, T_q, T_k)
        if causal:
            mask = causal_mask(q.shape[-2], k.shape[-2], q.device)  # (T_q, T_k)
        elif mask is None:
            mask = torch.ones_like(scores, dtype=torch.bool)
        elif mask.dtype != torch.bool:
            scores, mask = scores + mask.masked_fill(mask == -math.inf, 0.0), mask > -math.inf
        return self.tap("weights", weights_of(scores, mask.expand_as(scores))) @ v  # (B, H, T_q, d_k)

    return attend


@bug("The softmax runs down the columns of the scores: each key, not each query, hands out a sum of one.", lesson=2)
def softmax_over_queries(model):
    def weights_of(scores, mask):
        return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-2).masked_fill(~mask, 0.0)

    with replaced(MultiHeadAttention, "attend", attending(weights_of), model):
        yield


@bug("The mask comes after the softmax: hidden keys get no weight, but the others no longer sum to one.", lesson=5)
def mask_after_softmax(model):
    def weights_of(scores, mask):
        return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)

    with replaced(MultiHeadAttention, "attend", attending(weights_of), model):
        yield


@bug("A block returns its update alone: the stream that it should add to is lost.", lesson=6)
def dropped_residual(model):
    def add(original, self, x, update):
        return self.dropout(update)

    with replaced(Block, "add", add, model):
        yield


@bug("In SwiGLU the two matrices have changed places: the one that should pass unbent is the gate.", lesson=7)
def swapped_gate(model):
    def forward(original, self, x):
        with attributes(self, w_1=self.w_3, w_3=self.w_1):
            return original(self, x)

    with replaced(SwiGLU, "forward", forward, model):
        yield


@bug("The stream goes into the unembedding as it is: the norm after the last block is forgotten.", lesson=8)
def missing_final_norm(model):
    def run(original, self, *arguments, **memory):
        with attributes(self, final_norm=None):
            return original(self, *arguments, **memory)

    with replaced(Model, "run", run, model):
        yield


@bug("Query heads are dealt out to key/value heads in turn, 0 1 0 1, not in groups, 0 0 1 1.", lesson=10)
def kv_heads_dealt_in_turn(model):
    def attend(original, self, q, k, v, mask, causal):
        group = self.n_heads // self.kv_heads
        with attributes(self, kv_heads=self.n_heads):
            return original(self, q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), mask, causal)

    with replaced(MultiHeadAttention, "attend", attend, model):
        yield


@bug("A token that follows a cache is given the position of the token before it.", lesson=10)
def cache_position_off_by_one(model):
    def one_less(original, self, *arguments):
        *ids, positions = arguments  # (T,) or (B, T)
        return original(self, *ids, positions - (positions[..., :1] > 0).long())

    with replaced(Model, "rotation", one_less, model), replaced(Model, "embed", one_less, model):
        yield
