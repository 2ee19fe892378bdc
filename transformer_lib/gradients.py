"""How large is the gradient along a deep stack, and are its positions still told apart?

    model = deep_stack(48)
    profile = gradient_profile(model, ids, depth=24, norm_position="post", residual=True)
    profile.weights                  # (24,): the length of the gradient at each block's matrices

One deep model serves every depth and every wiring: its first blocks are taken, with the norm and the add where you say.
So two profiles differ by the wiring alone, never by the weights.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.losses import cross_entropy
from transformer_lib.model import Transformer

# Small, so that a profile takes milliseconds; no positions, which would cost time and change nothing here.
STACK = TransformerConfig(
    vocab_size=64, d_model=32, n_layers=48, n_heads=4, max_seq_len=32, positions="none", norm="layernorm",
    activation="relu",
)  # fmt: skip


class Profile(NamedTuple):
    """What there is along the stack; entry 0 of `stream`, `size` and `alike` is what enters the first block."""

    stream: Tensor  # (L + 1,) length of the gradient at the stream
    weights: Tensor  # (L,) length of the gradient at all matrices of each block
    size: Tensor  # (L + 1,) root mean square of the stream's numbers
    alike: Tensor  # (L + 1,) mean cosine between the streams of two positions: 1 = no position differs from another
    loss: float


@torch.no_grad()
def xavier(model: nn.Module) -> None:
    """Draw the blocks' matrices from N(0, 2 / (inputs + outputs)) (Glorot and Bengio, 2010), at every depth alike."""
    for weight in model.blocks.parameters():
        if weight.dim() >= 2:
            nn.init.xavier_normal_(weight)


def deep_stack(n_layers: int = STACK.n_layers, start: str = "xavier", seed: int = 0) -> Transformer:
    """An untrained model, small and deep. start: "xavier", or "gpt2" for `Transformer.initialize`."""
    if start not in ("xavier", "gpt2"):
        raise ValueError(f'start must be "xavier" or "gpt2"; got {start!r}.')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(STACK.replace(n_layers=n_layers))
        if start == "xavier":
            xavier(model)
            nn.init.normal_(model.embedding.weight)
            nn.init.normal_(model.unembedding.weight, std=STACK.d_model**-0.5)
    return model


def random_ids(rows: int = 4, length: int = 16, seed: int = 0) -> Tensor:
    """(rows, length + 1) ids for `deep_stack`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(STACK.vocab_size, (rows, length + 1), generator=generator)


def gradient_profile(
    model: Transformer, ids: Tensor, depth: int, norm_position: str = "pre", residual: bool = True
) -> Profile:
    """One forward and one backward pass of the next-token loss through the first `depth` blocks. ids: (B, T + 1)."""
    blocks = wired(model.blocks[:depth], norm_position == "pre", residual)
    streams = [model.embedding(ids[:, :-1])]  # (B, T, d_model)
    for block in blocks:
        streams.append(block(streams[-1], causal=True))
    for stream in streams:
        stream.retain_grad()
    top = model.final_norm(streams[-1]) if norm_position == "pre" else streams[-1]
    model.zero_grad()
    loss = cross_entropy(model.unembedding(top), ids[:, 1:])
    loss.backward()
    weights = [math.sqrt(sum(float(w.grad.square().sum()) for w in b.parameters() if w.dim() >= 2)) for b in blocks]
    gradients = torch.stack([stream.grad.norm() for stream in streams])
    every = torch.stack(streams).detach()  # (L + 1, B, T, d_model)
    return Profile(gradients, torch.tensor(weights), every.square().mean((1, 2, 3)).sqrt(), alike(every), loss.item())


def average(profiles) -> Profile:
    """One profile out of several of the same depth: the geometric mean of each length, the mean of the likeness."""
    stream, weights, size, likeness, losses = zip(*profiles, strict=True)
    lengths = [torch.stack(parts).log().mean(dim=0).exp() for parts in (stream, weights, size)]
    return Profile(*lengths, torch.stack(likeness).mean(dim=0), sum(losses) / len(losses))


def wired(blocks, pre_norm: bool, residual: bool) -> list[nn.Module]:
    """The same blocks, weights shared, with the norm before or after and with or without the add."""
    twins = [copy.copy(block) for block in blocks]
    for twin in twins:
        twin.pre_norm, twin.residual = pre_norm, residual
    return twins


def alike(streams: Tensor) -> Tensor:
    """The mean cosine between two different positions of a row: (…, B, T, d_model) -> (…)."""
    unit = F.normalize(streams, dim=-1)
    n = streams.shape[-2]
    pairs = unit.sum(dim=-2).square().sum(dim=-1) - n  # (…, B): all ordered pairs, each with another than itself
    return (pairs / (n * (n - 1))).mean(dim=-1)
