"""Norms: bring each position's vector to a standard size, whatever its neighbours hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig


class LayerNorm(nn.Module):
    """Subtract the mean, divide by the standard deviation, then scale and shift (Ba et al., 2016): 2d learned numbers.

    The variance is the biased one (divided by d), and eps stands inside the root.
    """

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model); computed in float32, returned in the dtype of x."""
        centred = x.float() - x.float().mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)  # (…, 1)
        return (centred * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight + self.bias


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, then scale (Zhang and Sennrich, 2019): d learned numbers."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model); computed in float32, returned in the dtype of x."""
        mean_square = x.float().pow(2).mean(dim=-1, keepdim=True)  # (…, 1)
        return (x.float() * torch.rsqrt(mean_square + self.eps)).to(x.dtype) * self.weight


def make_norm(cfg: TransformerConfig) -> nn.Module:
    """The norm that the config names."""
    return {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[cfg.norm](cfg.d_model, cfg.norm_eps)
