"""The MLP: widen, apply a nonlinearity, narrow; at each position alone, with the same weights at every position.

The 2017 paper calls it the position-wise feed-forward network (section 3.3).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.taps import Tapped


class MLP(Tapped):
    """W₂ φ(W₁ x), with φ = ReLU (2017) or GELU in its tanh form (GPT-2)."""

    TAPS = ("hidden", "output")

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.activation = cfg.activation
        self.w_1 = nn.Linear(cfg.d_model, cfg.ff_width, bias=cfg.bias)
        self.w_2 = nn.Linear(cfg.ff_width, cfg.d_model, bias=cfg.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)."""
        wide = self.w_1(x)  # (B, T, d_ff)
        wide = F.relu(wide) if self.activation == "relu" else F.gelu(wide, approximate="tanh")
        return self.tap("output", self.w_2(self.tap("hidden", wide)))  # (B, T, d_model)


class SwiGLU(Tapped):
    """W₂ (SiLU(W₁ x) ⊙ W₃ x): one widened copy gates the other, element by element (Shazeer, 2020)."""

    TAPS = ("hidden", "output")

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.w_1 = nn.Linear(cfg.d_model, cfg.ff_width, bias=cfg.bias)
        self.w_3 = nn.Linear(cfg.d_model, cfg.ff_width, bias=cfg.bias)
        self.w_2 = nn.Linear(cfg.ff_width, cfg.d_model, bias=cfg.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d_model) -> (B, T, d_model)."""
        wide = F.silu(self.w_1(x)) * self.w_3(x)  # (B, T, d_ff)
        return self.tap("output", self.w_2(self.tap("hidden", wide)))  # (B, T, d_model)


def make_mlp(cfg: TransformerConfig) -> Tapped:
    """The MLP that the config names."""
    return SwiGLU(cfg) if cfg.activation == "swiglu" else MLP(cfg)
