"""The same numbers as the formulas of `norms.py`, `positions.py` and `losses.py`, in fewer passes over memory.

Training a small model spends a third of its time outside of matrix products, and most of that on reading and writing
whole tensors. Autograd, left alone, keeps and visits an intermediate for every sign in a formula. Here three functions
come with their gradients, worked out by hand and written with as few visits as torch allows. The formulas themselves
stand where they are taught (`norms.rms_norm`, `positions.rotate`, `losses.token_losses`); tests hold values and
gradients equal.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class RMSNorm(torch.autograd.Function):
    """y = w ⊙ x̂ with x̂ = x r and r = 1 / √(mean(x²) + ε).

    With g = dL/dy: dL/dw = Σ g ⊙ x̂ over all positions, and dL/dx = r (g ⊙ w − x̂ mean(g ⊙ w ⊙ x̂)).
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (…, 1)
        r = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (…, 1)
        unit = x * r  # (…, d)
        ctx.save_for_backward(unit, weight, r)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        unit, weight, r = ctx.saved_tensors
        product = g * unit  # (…, d)
        for_weight = product.reshape(-1, product.shape[-1]).sum(dim=0)  # (d,)
        mean = (product @ weight)[..., None] / unit.shape[-1]  # (…, 1)
        for_x = torch.mul(g, weight, out=product).addcmul_(unit, mean, value=-1).mul_(r)  # (…, d)
        return for_x, for_weight, None


class Rotation(torch.autograd.Function):
    """RoPE. A rotation's gradient is turned back by the same angle."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        cos, sin = ctx.saved_tensors
        return turned(g, cos, -sin), None, None


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(first · cos − second · sin, second · cos + first · sin), written into their places at once. x: (…, T, d_k)."""
    out = torch.empty_like(x)  # (…, T, d_k)
    (first, second), (new_first, new_second) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)  # (…, T, d_k / 2) each
    torch.mul(first, cos, out=new_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=new_second).addcmul_(first, sin)
    return out


class Surprise(torch.autograd.Function):
    """−ln p(target) with p = softmax(logits): its gradient is p, less 1 at the target."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits, dim=-1)  # (…, V)
        ctx.save_for_backward(log_p, targets)
        return log_p.gather(-1, targets[..., None]).squeeze(-1).neg_()  # (…)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        log_p, targets = ctx.saved_tensors
        for_logits, targets = log_p.exp(), targets[..., None]  # (…, V), (…, 1)
        for_logits.scatter_add_(-1, targets, torch.full_like(targets, -1, dtype=log_p.dtype))
        return for_logits.mul_(g[..., None]), None  # (…, V)
