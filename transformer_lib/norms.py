"""Norms: bring each position's vector to a standard size, whatever its neighbours hold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib import fused
from transformer_lib.config import TransformerConfig


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Subtract the mean, divide by the standard deviation, then scale and shift (Ba et al., 2016).

    The variance is the biased one (divided by d), and eps stands inside the root.
    x: (…, d); weight, bias: (d,); returns (…, d): computed in float32, returned in the dtype of x.
    """
    centred = x.float() - x.float().mean(dim=-1, keepdim=True)
    variance = centred.pow(2).mean(dim=-1, keepdim=True)  # (…, 1)
    return (centred * torch.rsqrt(variance + eps)).to(x.dtype) * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root of the mean square, then scale (Zhang and Sennrich, 2019).

    x: (…, d); weight: (d,); returns (…, d): computed in float32, returned in the dtype of x.
    """
    mean_square = x.float().pow(2).mean(dim=-1, keepdim=True)  # (…, 1)
    return (x.float() * torch.rsqrt(mean_square + eps)).to(x.dtype) * weight


class LayerNorm(nn.Module):
    """`layer_norm` with its 2d learned numbers; in float32 by torch's own kernel, which visits x once."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)."""
        if x.dtype == self.weight.dtype == torch.float32:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`rms_norm` with its d learned numbers; in float32 with a gradient of our own (`fused.RMSNorm`)."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> (…, d_model)."""
        if x.dtype == self.weight.dtype == torch.float32:
            return fused.RMSNorm.apply(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)


def make_norm(cfg: TransformerConfig) -> nn.Module:
    """The norm that the config names."""
    return {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[cfg.norm](cfg.d_model, cfg.norm_eps)
