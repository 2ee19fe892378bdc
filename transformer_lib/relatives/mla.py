"""Multi-head latent attention: cache one small vector per token, from which all heads make their keys and values.

DeepSeek-V2 (DeepSeek-AI, 2024), section 2.1. A down-projection makes a *latent* c of width d_latent from each
position's stream; each head up-projects it to its own key and value. Only c is cached. RoPE stands in the way: a
rotated key could not be made from c by one fixed matrix. So a second, small key carries the position: d_rope numbers,
rotated, shared by all heads, cached beside c ("decoupled").

The paper also compresses the queries, which saves activations while training and nothing in the cache: left out here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.config import TransformerConfig
from transformer_lib.kv_cache import KVCache
from transformer_lib.model import Transformer
from transformer_lib.norms import RMSNorm
from transformer_lib.positions import rotate, rotation


@dataclass(frozen=True, kw_only=True)
class MLAConfig(TransformerConfig):
    """A TransformerConfig with d_latent, the width of the cached latent, and d_rope, that of the shared rotary key."""

    d_latent: int
    d_rope: int

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.d_latent, int) or self.d_latent < 1:
            raise ValueError(f"d_latent must be a whole number of at least 1; got {self.d_latent!r}.")
        if not isinstance(self.d_rope, int) or self.d_rope < 2 or self.d_rope % 2:
            raise ValueError(f"RoPE rotates pairs of numbers: d_rope must be even, at least 2; got {self.d_rope!r}.")
        if self.positions != "rope" or self.kv_heads != self.n_heads:
            raise ValueError(
                f"latent attention has RoPE positions and a key per query head; got positions={self.positions!r} "
                f"and n_kv_heads={self.n_kv_heads}."
            )


def mla_bytes_per_token(cfg: MLAConfig, bytes_per_number: int = 2) -> int:
    """What the cache grows by with each token: L · (d_latent + d_rope) numbers."""
    return cfg.n_layers * (cfg.d_latent + cfg.d_rope) * bytes_per_number


class LatentCache(KVCache):
    """The latents and rotary keys of `max_len` tokens of `batch_size` sequences, at every layer."""

    def allocate(self, cfg: MLAConfig, dtype, device) -> None:
        shape = (cfg.n_layers, self.batch_size, 1, self.max_len)  # one for all heads
        self.values = torch.zeros(*shape, cfg.d_latent, dtype=dtype, device=device)  # (L, B, 1, N, d_latent)
        self.keys = torch.zeros(*shape, cfg.d_rope, dtype=dtype, device=device)  # (L, B, 1, N, d_rope)


class LatentAttention(MultiHeadAttention):
    """Multi-head attention whose keys and values are made from one latent per token.

    Without a cache it computes them ("plain"). With one it never does: each head's up-projections are absorbed into
    its query and its output, for q · (W_UK c) = (W_UKᵀ q) · c and Σ w_t (W_UV c_t) = W_UV (Σ w_t c_t). All heads then
    share the one key [c, rotary key] and the one value c, as in multi-query attention with wide heads.
    """

    TAPS = ("latent", *MultiHeadAttention.TAPS)

    def __init__(self, cfg: MLAConfig):
        super().__init__(cfg)
        del self.w_k, self.w_v
        self.d_latent, self.d_rope = cfg.d_latent, cfg.d_rope
        self.scale = 1 / math.sqrt(cfg.d_k + cfg.d_rope) if cfg.scale_scores else 1.0
        self.w_q = nn.Linear(cfg.d_model, cfg.n_heads * (cfg.d_k + cfg.d_rope), bias=cfg.bias)
        self.w_down = nn.Linear(cfg.d_model, cfg.d_latent + cfg.d_rope, bias=cfg.bias)
        self.latent_norm = RMSNorm(cfg.d_latent, cfg.norm_eps)
        self.w_up_k = nn.Linear(cfg.d_latent, cfg.n_heads * cfg.d_k, bias=False)
        self.w_up_v = nn.Linear(cfg.d_latent, cfg.n_heads * cfg.d_k, bias=False)

    def forward(self, x: Tensor, *, rotation, mask=None, causal=False, cache=None, layer=0) -> Tensor:
        """x: (B, T_q, d_model); returns (B, T_q, d_model). The arguments are those of `MultiHeadAttention`."""
        q = self.w_q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T_q, d_k + d_rope)
        q, q_rope = q.split([self.d_k, self.d_rope], dim=-1)
        q_rope = rotate(q_rope, *rotation)  # (B, H, T_q, d_rope)
        c, k_rope = self.w_down(x)[:, None].split([self.d_latent, self.d_rope], dim=-1)
        c = self.tap("latent", self.latent_norm(c))  # (B, 1, T_q, d_latent)
        k_rope = rotate(k_rope, *rotation)  # (B, 1, T_q, d_rope)
        if cache is None:
            heads = self.plain(q, q_rope, c, k_rope, mask, causal)  # (B, H, T_q, d_k)
        else:
            k_rope, c = cache.append(layer, k_rope, c)  # (B, 1, T_k, d_rope), (B, 1, T_k, d_latent)
            heads = self.absorbed(q, q_rope, c, k_rope, mask, causal)  # (B, H, T_q, d_k)
        heads = self.tap("heads", heads.transpose(1, 2))  # (B, T_q, H, d_k)
        return self.tap("output", self.w_o(heads.flatten(2)))  # (B, T_q, d_model)

    def plain(self, q, q_rope, c, k_rope, mask, causal: bool) -> Tensor:
        """Every head makes its keys and values from the latents; returns (B, H, T_q, d_k)."""
        k = self.split_heads(self.w_up_k(c.squeeze(1)), self.n_heads)  # (B, H, T_k, d_k)
        v = self.split_heads(self.w_up_v(c.squeeze(1)), self.n_heads)  # (B, H, T_k, d_k)
        return self.attend_tapped(q, q_rope, k, k_rope, v, mask, causal)  # (B, H, T_q, d_k)

    def absorbed(self, q, q_rope, c, k_rope, mask, causal: bool) -> Tensor:
        """No head makes keys or values: the latents serve as both; returns (B, H, T_q, d_k)."""
        up_k = self.w_up_k.weight.unflatten(0, (self.n_heads, self.d_k))  # (H, d_k, d_latent)
        up_v = self.w_up_v.weight.unflatten(0, (self.n_heads, self.d_k))  # (H, d_k, d_latent)
        latents = c.expand(-1, self.n_heads, -1, -1)  # (B, H, T_k, d_latent), not copied
        averages = self.attend_tapped(q @ up_k, q_rope, latents, k_rope, latents, mask, causal)  # (B, H, T_q, d_latent)
        return averages @ up_v.transpose(-2, -1)  # (B, H, T_q, d_k)

    def attend_tapped(self, q, q_rope, k, k_rope, v, mask, causal: bool) -> Tensor:
        """Attention over content and position side by side, for the sum of both dot products is the score."""
        q = torch.cat([q, q_rope], dim=-1)  # (B, H, T_q, width + d_rope)
        k = torch.cat([k, k_rope.expand(-1, self.n_heads, -1, -1)], dim=-1)  # (B, H, T_k, width + d_rope)
        q, k, v = self.tap("q", q), self.tap("k", k), self.tap("v", v)
        return self.attend(q, k, v, mask, causal)  # (B, H, T_q, width of v)


class MLATransformer(Transformer):
    """A Transformer with latent attention in every block."""

    cache_kind = LatentCache

    def __init__(self, cfg: MLAConfig):
        super().__init__(cfg)
        for block in self.blocks:
            block.attention = LatentAttention(cfg)
        self.initialize()

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The angles for the d_rope numbers that are rotated: (T, d_rope / 2), or (B, 1, T, d_rope / 2)."""
        positions = positions if positions.dim() == 1 else positions[:, None]  # (T,) or (B, 1, T)
        return rotation(positions, self.cfg.d_rope, self.cfg.rope_theta, self.cfg.rope_scaling)
