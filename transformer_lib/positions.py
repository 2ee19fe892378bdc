"""Where a token stands: attention has no notion of order, so position is put in explicitly, in one of three ways.

All functions take `positions`: integers of any shape, the place of each token counted from 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """The fixed table of the 2017 paper (section 3.5), added to the embeddings.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) the cosine of the same angle.
    positions: (…); returns (…, d_model), float32.
    """
    wavelengths = 10_000 ** (torch.arange(0, d_model, 2, device=positions.device) / d_model)  # (d_model / 2,)
    angles = positions[..., None] / wavelengths  # (…, d_model / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # (…, d_model)


class LearnedPositions(nn.Embedding):
    """A second table with one learned row per position, added to the embeddings (GPT-2)."""


def rotation(positions: Tensor, d_k: int, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles by which RoPE turns each pair of numbers (Su et al., 2021, section 3.2).

    Pair i of a head of width d_k turns by positions · θ_i with θ_i = theta^(−2i / d_k).
    positions: (…); returns two tensors (…, d_k / 2), float32.
    """
    frequencies = theta ** (-torch.arange(0, d_k, 2, device=positions.device) / d_k)  # (d_k / 2,)
    angles = positions[..., None] * frequencies  # (…, d_k / 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + d_k / 2]) of every query or key: the half-split layout.

    x: (B, H, T, d_k); cos, sin: (T, d_k / 2), or (B, 1, T, d_k / 2) where rows stand at different positions.
    Returns the shape and the dtype of x.
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, d_k / 2) each
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)  # (B, H, T, d_k)


def interleaved_to_half_split(d_k: int) -> Tensor:
    """The order in which to take a head's numbers to go from the interleaved layout to the half-split one.

    The RoPE paper and Llama's own code pair neighbours (0, 1), (2, 3) …; this library and Hugging Face pair i with
    i + d_k / 2. `x[..., interleaved_to_half_split(d_k)]` turns the first into the second: importers apply it to the
    rows of the query and key projections. Returns (d_k,), int64.
    """
    return torch.arange(d_k).view(-1, 2).T.flatten()  # (d_k,)
