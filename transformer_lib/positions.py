"""Where a token stands: attention has no notion of order, so position is put in explicitly, in one of four ways.

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


def rotation(
    positions: Tensor, d_k: int, theta: float = 10_000.0, scaling: tuple[float, float, float, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles by which RoPE turns each pair of numbers (Su et al., 2021, section 3.2).

    Pair i of a head of width d_k turns by positions · θ_i with θ_i = theta^(−2i / d_k).
    positions: (…); scaling: the arguments of `stretch`; returns two tensors (…, d_k / 2), float32.
    """
    frequencies = theta ** (-torch.arange(0, d_k, 2, device=positions.device) / d_k)  # (d_k / 2,)
    if scaling is not None:
        frequencies = stretch(frequencies, *scaling)
    angles = positions[..., None] * frequencies  # (…, d_k / 2)
    return angles.cos(), angles.sin()


def stretch(frequencies: Tensor, factor: float, low: float, high: float, original_length: int) -> Tensor:
    """RoPE frequencies for texts `factor` times longer than those of the first training, as in Llama 3.1.

    A pair that turns more than `high` times within the original length tells neighbours apart and stays; one that turns
    fewer than `low` times tells far places apart and turns `factor` times slower; in between, a mixture (Peng et al.,
    2023, "YaRN", section 3.2; Llama 3.1's own code, `apply_scaling`). frequencies: (d_k / 2,); returns the same shape.
    """
    turns = original_length * frequencies / (2 * torch.pi)  # (d_k / 2,)
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # (d_k / 2,)
    return frequencies * (kept + (1 - kept) / factor)  # (d_k / 2,)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + d_k / 2]) of every query or key: the half-split layout.

    x: (B, H, T, d_k); cos, sin: (T, d_k / 2), or (B, 1, T, d_k / 2) where rows stand at different positions.
    Returns the shape and the dtype of x.
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, d_k / 2) each
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)  # (B, H, T, d_k)


def alibi(n_heads: int, t_q: int, t_k: int, keep: Tensor | None = None, device=None) -> Tensor:
    """What ALiBi adds to the scores: −slope · distance, so that far keys count less (Press et al., 2022, section 3).

    Head h of H has the slope 2^(−8 h / H), h = 1 … H. The queries are the last t_q of the t_k positions.
    keep: (B, T_k) bool, True = a real token; distances then count real tokens.
    Returns (H, T_q, T_k), or (B, H, T_q, T_k) with keep; float32.
    """
    places = torch.arange(t_k, device=device) if keep is None else keep.cumsum(dim=-1)  # (T_k,) or (B, T_k)
    distances = (places[..., -t_q:, None] - places[..., None, :]).abs()  # (T_q, T_k) or (B, T_q, T_k)
    slopes = 2.0 ** (-8 * torch.arange(1, n_heads + 1, device=device) / n_heads)  # (H,)
    return -slopes[:, None, None] * distances[..., None, :, :]  # (H, T_q, T_k) or (B, H, T_q, T_k)


def interleaved_to_half_split(d_k: int) -> Tensor:
    """The order in which to take a head's numbers to go from the interleaved layout to the half-split one.

    The RoPE paper and Llama's own code pair neighbours (0, 1), (2, 3) …; this library and Hugging Face pair i with
    i + d_k / 2. `x[..., interleaved_to_half_split(d_k)]` turns the first into the second: importers apply it to the
    rows of the query and key projections. Returns (d_k,), int64.
    """
    return torch.arange(d_k).view(-1, 2).T.flatten()  # (d_k,)
