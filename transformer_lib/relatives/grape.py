"""RoPE and ALiBi as one family: position acts on queries and keys as a group, exp(m G).

GRAPE, "Group Representational Position Encoding" (Zhang et al., 2025). Take one square matrix G. The matrices
exp(m G), for all m, form a one-parameter group: exp(m G) exp(n G) = exp((m + n) G). A key at position n and a query at
position m, each moved by its own group element, then meet in a score that depends on n - m alone. The rest is the
choice of G:

- G skew-symmetric (Gᵀ = -G): exp(m G) is a rotation. With G made of 2 × 2 blocks this is RoPE ("multiplicative").
- G nilpotent (G² = 0): exp(m G) = I + m G, and the score gains a term linear in the distance. This is ALiBi
  ("additive").

The models do not use this module: it is the check, in float64, that both are what the paper says.
"""

from __future__ import annotations

import torch
from torch import Tensor


def skew_symmetric(matrix: Tensor) -> Tensor:
    """The skew-symmetric part of a square matrix, (M - Mᵀ) / 2: its exponential is a rotation. (d, d) -> (d, d)."""
    return (matrix - matrix.T) / 2


def group_element(generator: Tensor, position: float) -> Tensor:
    """exp(position · G), computed from its power series by torch, not from any closed form. (d, d) -> (d, d)."""
    return torch.linalg.matrix_exp(position * generator)


def rope_generator(d_k: int, theta: float = 10_000.0) -> Tensor:
    """The G whose exp(m G) turns pair (i, i + d_k / 2) by m · theta^(-2i / d_k), float64, (d_k, d_k).

    Skew-symmetric, with one 2 × 2 block per pair: it turns planes that have nothing to do with each other.
    """
    half = d_k // 2
    frequencies = theta ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)  # (d_k / 2,)
    generator = torch.zeros(d_k, d_k, dtype=torch.float64)
    generator[:half, half:] = torch.diag(-frequencies)
    generator[half:, :half] = torch.diag(frequencies)
    return generator


def alibi_generator(d_k: int, slope: float) -> Tensor:
    """The G with G² = 0 that gives ALiBi with this slope, float64, (d_k + 2, d_k + 2).

    It acts on queries and keys that two numbers were added to (`extend`), and moves one of them into the other.
    """
    generator = torch.zeros(d_k + 2, d_k + 2, dtype=torch.float64)
    generator[d_k, d_k + 1] = slope
    return generator


def extend(x: Tensor, first: float, second: float) -> Tensor:
    """(…, d_k) -> (…, d_k + 2): a query gets (1, 0), a key (0, 1); their own dot product stays as it was."""
    return torch.cat([x, torch.full_like(x[..., :1], first), torch.full_like(x[..., :1], second)], dim=-1)


def relative_score(q: Tensor, k: Tensor, generator: Tensor, distance: float) -> Tensor:
    """qᵀ exp(distance · G) k, with distance = the key's position - the query's: a scalar. q, k: (d,)."""
    return q @ group_element(generator, distance) @ k
