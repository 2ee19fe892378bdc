"""Attention: every position takes a weighted average over the positions that it may see.

`scaled_dot_product_attention` is the one to read, and the one that a model runs while it is being looked at.
Otherwise a model runs torch's fused kernel, which gives the same numbers without storing the (T, T) weights.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib import fused
from transformer_lib.config import TransformerConfig
from transformer_lib.positions import rotate
from transformer_lib.taps import Tapped


def causal_mask(t_q: int, t_k: int | None = None, device=None) -> Tensor:
    """Which keys each query may see when it must not see its future: (T_q, T_k) bool, True = visible.

    With fewer queries than keys, the queries are the last ones, as in decoding: the mask aligns at the bottom right.
    """
    t_k = t_q if t_k is None else t_k
    return torch.ones(t_q, t_k, dtype=torch.bool, device=device).tril(diagonal=t_k - t_q)  # (T_q, T_k)


def visible_pairs(t_q: int, t_k: int, causal: bool, keep: Tensor | None, device=None) -> tuple[Tensor | None, bool]:
    """What the causal rule and the padding leave visible, as the two arguments (mask, causal) of `MultiHeadAttention`.

    keep: (B, T_k) bool, True = a real token, or None where there is no padding. The two rules are separate: a key is
    visible if it is not in the query's future *and* not padding. A mask is made only where one is needed.
    """
    if keep is not None:
        mask = keep[:, None, None, :]  # (B, 1, 1, T_k)
        return (mask & causal_mask(t_q, t_k, device) if causal else mask), False  # (B, 1, T_q or 1, T_k)
    if not causal or t_q == 1:  # a single query is the last position: it sees every key
        return None, False
    if t_q == t_k:
        return None, True
    return causal_mask(t_q, t_k, device), False  # (T_q, T_k)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float | None = None, tap=None) -> Tensor:
    """softmax(q kᵀ · scale), row by row (Vaswani et al., 2017, section 3.2.1).

    q: (…, T_q, d_k); k: (…, T_k, d_k); mask: broadcastable to (…, T_q, T_k), bool, True = may be seen; or numbers that
    are added to the scores, −∞ where nothing may be seen.
    scale: 1 / √d_k unless given; d_k is the width of a head, not of the model.
    tap: a function (name, tensor) -> tensor that is offered "scores" and "weights".
    Returns (…, T_q, T_k): non-negative rows that sum to one. A row that may see nothing is all zeros.
    """
    tap = tap or (lambda name, value: value)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = tap("scores", q @ k.transpose(-2, -1) * scale)  # (…, T_q, T_k)
    if mask is None:
        return tap("weights", torch.softmax(scores, dim=-1))
    if mask.dtype != torch.bool:
        scores, mask = scores + mask, mask > -math.inf
    # −∞ before the softmax, for e^−∞ is exactly 0. The second fill is for rows that see nothing: 0 / 0.
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1).masked_fill(~mask, 0.0)
    return tap("weights", weights)


def scaled_dot_product_attention(q, k, v, mask=None, scale=None, tap=None) -> Tensor:
    """softmax(q kᵀ / √d_k) v: each query's average of the values, weighted by how well its key matches.

    v: (…, T_k, d_v); the other arguments are those of `attention_weights`. Returns (…, T_q, d_v).
    """
    return attention_weights(q, k, mask, scale, tap) @ v  # (…, T_q, d_v)


class MultiHeadAttention(Tapped):
    """H attentions side by side, each d_k wide, concatenated and mixed by W_O (section 3.2.2).

    With cfg.n_kv_heads < n_heads, groups of query heads share one key and one value head: grouped-query attention
    (Ainslie et al., 2023), and with a single one multi-query attention (Shazeer, 2019).
    """

    TAPS = ("q", "k", "v", "scores", "weights", "heads", "output")

    def __init__(self, cfg: TransformerConfig, cross: bool = False):
        super().__init__()
        self.cross = cross
        self.n_heads, self.kv_heads, self.d_k = cfg.n_heads, cfg.kv_heads, cfg.d_k
        self.scale = 1 / math.sqrt(cfg.d_k) if cfg.scale_scores else 1.0
        self.w_q = nn.Linear(cfg.d_model, cfg.n_heads * cfg.d_k, bias=cfg.bias)
        self.w_k = nn.Linear(cfg.d_model, cfg.kv_heads * cfg.d_k, bias=cfg.bias)
        self.w_v = nn.Linear(cfg.d_model, cfg.kv_heads * cfg.d_k, bias=cfg.bias)
        self.w_o = nn.Linear(cfg.n_heads * cfg.d_k, cfg.d_model, bias=cfg.bias)

    def forward(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache=None,
        layer: int = 0,
    ) -> Tensor:
        """x: (B, T_q, d_model); returns (B, T_q, d_model).

        memory: (B, T_k, d_model), read for keys and values in place of x: cross-attention. It may be None once the
        cache holds its keys and values.
        rotation: (cos, sin) of `positions.rotation` for RoPE.
        mask: broadcastable to (B, H, T_q, T_k): bool, True = may be seen, or numbers to be added to the scores.
        causal: as many queries as keys, each sees the keys up to its own: the common case, which needs no stored mask.
        cache: a `KVCache`, where this layer's earlier keys and values are kept; `layer` is its index there.
        """
        q = self.split_heads(self.w_q(x), self.n_heads)  # (B, H, T_q, d_k)
        if rotation is not None:
            q = self.rotate(q, *rotation)
        if self.cross:
            k, v = self.cross_keys_and_values(memory, cache, layer)  # (B, H_kv, T_k, d_k) each
        else:
            k, v = self.keys_and_values(x, rotation, cache, layer)  # (B, H_kv, T_k, d_k) each
        q, k, v = self.tap("q", q), self.tap("k", k), self.tap("v", v)
        heads = self.attend(q, k, v, mask, causal).transpose(1, 2)  # (B, T_q, H, d_k)
        heads = self.tap("heads", heads)
        return self.tap("output", self.w_o(heads.flatten(2)))  # (B, T_q, d_model)

    def keys_and_values(self, x, rotation, cache, layer: int) -> tuple[Tensor, Tensor]:
        """(B, H_kv, T_k, d_k) each: computed for the new positions, taken from the cache for the earlier ones."""
        k = self.split_heads(self.w_k(x), self.kv_heads)  # (B, H_kv, T_q, d_k)
        v = self.split_heads(self.w_v(x), self.kv_heads)  # (B, H_kv, T_q, d_k)
        if rotation is not None:
            k = self.rotate(k, *rotation)
        return (k, v) if cache is None else cache.append(layer, k, v)  # (B, H_kv, T_k, d_k)

    def cross_keys_and_values(self, memory, cache, layer: int) -> tuple[Tensor, Tensor]:
        """(B, H_kv, S, d_k) each, of an encoder's output, which never changes while decoding: projected once."""
        if cache is not None and layer in cache.cross:
            return cache.cross[layer]
        k = self.split_heads(self.w_k(memory), self.kv_heads)  # (B, H_kv, S, d_k)
        v = self.split_heads(self.w_v(memory), self.kv_heads)  # (B, H_kv, S, d_k)
        if cache is not None:
            cache.cross[layer] = k.detach(), v.detach()
        return k, v

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """RoPE, (B, H, T, d_k) -> the same: `positions.rotate`, and with its own gradient while nobody listens."""
        if self.listener is not None:
            return rotate(x, cos, sin)
        return fused.Rotation.apply(x, cos.to(x.dtype), sin.to(x.dtype))

    def attend(self, q, k, v, mask, causal: bool) -> Tensor:
        """(B, H, T_q, d_k): in the open while somebody listens, by the fused kernel otherwise."""
        if self.listener is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=self.scale, enable_gqa=self.kv_heads < self.n_heads
            )
        group = self.n_heads // self.kv_heads  # query heads h · group … share key/value head h
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # (B, H, T_k, d_k)
        if causal:
            mask = causal_mask(q.shape[-2], k.shape[-2], q.device)  # (T_q, T_k)
        return scaled_dot_product_attention(q, k, v, mask, self.scale, self.tap)

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """Cut the last dimension into heads, and let each head see all positions."""
        return x.unflatten(-1, (heads, self.d_k)).transpose(1, 2)  # (B, T, heads · d_k) -> (B, heads, T, d_k)
