"""Decoding faster than the readable path, with the same numbers: one new token of each sequence at a time.

Two things cost time when a step has few rows. A small model spends it between its many tiny operations: here each is
called once, without modules, checks and taps in between. A large one spends it on reading its weights: a product with
one row reads them fastest when they lie transposed in memory. So `DecodeCopy` holds the weights a second time,
transposed, those that read the same row side by side. `generate` makes one where it pays, for that call alone.

`model.py` says what a step means. `checked_copy` trusts nothing: it hands out a copy only after it has given the
logits that the model gave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.kv_cache import KVCache
from transformer_lib.mlp import MLP, SwiGLU
from transformer_lib.model import Block, Transformer
from transformer_lib.norms import LayerNorm, RMSNorm
from transformer_lib.positions import LearnedPositions, sinusoids
from transformer_lib.taps import Tapped

KNOWN = {
    Transformer, Block, MultiHeadAttention, MLP, SwiGLU, LayerNorm, RMSNorm, LearnedPositions, nn.Embedding, nn.Linear,
    nn.Dropout, nn.ModuleList,
}  # fmt: skip
FEWEST_STEPS = 32  # for fewer, copying the weights costs more time than it saves
MOST_ROWS = 64  # measured up to here: the copy is faster with every number of rows
LARGEST_COPY = 1_000_000_000  # bytes: a larger model is decoded without a copy
CLOSE = 1e-3  # of logits, absolute and relative: two orders of summation in float32 stay far below


class DecodeCopy:
    """The weights of a `Transformer` as products with few rows read them.

    max_len: the tokens of the longest sequence. rows: the sequences, B. nbytes: the memory that the copy takes beside
    the model: 4 bytes for each weight that multiplies. Weights that change later change nothing here.
    """

    def __init__(self, model: Transformer, max_len: int, rows: int = 1):
        cfg, places = model.cfg, torch.arange(max_len)
        self.embedding = model.embedding.weight.detach()  # (V, d_model), the model's own
        self.embedding_scale = math.sqrt(cfg.d_model) if cfg.embedding_scale else None
        self.added = None  # (N, d_model): positions that are added to the embeddings
        if cfg.positions == "learned":
            self.added = model.position_embedding.weight.detach()
        elif cfg.positions == "sinusoidal":
            self.added = sinusoids(places, cfg.d_model)
        self.angles = model.rotation(places)  # None, or two of (N, d_k / 2)
        self.layers = [Layer(block, rows, rope=self.angles is not None) for block in model.blocks]
        self.final_norm = norm_of_rows(model.final_norm, rows)
        self.unembedding = Product(rows, model.unembedding)

    @property
    def nbytes(self) -> int:
        return self.unembedding.nbytes + sum(p.nbytes for layer in self.layers for p in layer.products())

    def logits(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """The logits (B, V) after `tokens` (B,), which `cache` has counted already: their keys and values go there."""
        at = cache.length - 1
        places, mask = self.places_and_mask(cache, at)
        x = F.embedding(tokens, self.embedding)  # (B, d_model)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.added is not None:
            x = x + self.added[places]
        turn = None if self.angles is None else self.turn(places, len(x))
        new = cache.keys[:, :, :, at].unbind(), cache.values[:, :, :, at].unbind()  # per layer (B, H_kv, d_k)
        seen = cache.keys[:, :, :, : at + 1].unbind(), cache.values[:, :, :, : at + 1].unbind()  # (B, H_kv, T, d_k)
        for layer, new_k, new_v, k, v in zip(self.layers, *new, *seen):
            x = layer(x, turn, mask, new_k, new_v, k, v)  # (B, d_model)
        return self.unembedding(self.final_norm(x)).clone()  # (B, V)

    def turn(self, places: Tensor | int, rows: int) -> Tensor:
        """RoPE at these places, as a layer's `turn` reads it: (d_k, d_k) for one row, (B, d_k, d_k) for several."""
        matrices = rotation_matrix(*(angle[places] for angle in self.angles))  # (d_k, d_k) or (B, d_k, d_k)
        width = matrices.shape[-1]
        return matrices.view(width, width) if rows == 1 else matrices.expand(rows, width, width)

    def places_and_mask(self, cache: KVCache, at: int) -> tuple[Tensor | int, Tensor | None]:
        """Where the new tokens stand, one place for all or (B,), and what hides the padding from them, (B, 1, 1, T)."""
        if not cache.has_padding:
            return at, None
        keep = cache.keep[:, : at + 1]  # (B, T)
        hidden = torch.where(keep, 0.0, -math.inf)  # once for all layers: the kernel adds it to the scores
        return keep.sum(dim=1) - 1, hidden[:, None, None]  # (B,), (B, 1, 1, T)


class Layer:
    """One block. What it computes for a step is written over what it computed for the step before."""

    def __init__(self, block: Block, rows: int, rope: bool):
        attention, mlp = block.attention, block.mlp
        self.pre_norm, self.residual, self.scale = block.pre_norm, block.residual, attention.scale
        self.attention_norm, self.mlp_norm = (norm_of_rows(n, rows) for n in (block.attention_norm, block.mlp_norm))
        self.qkv, self.w_o = Product(rows, attention.w_q, attention.w_k, attention.w_v), Product(rows, attention.w_o)
        heads, kv_heads, d_k = attention.n_heads, attention.kv_heads, attention.d_k
        qkv = self.qkv.out.view(rows, -1, d_k)  # (B, H + 2 H_kv, d_k)
        qk, self.v = qkv.split([heads + kv_heads, kv_heads], dim=1)  # (B, H + H_kv, d_k), (B, H_kv, d_k)
        turned = torch.empty_like(qk) if rope else qk  # (B, H + H_kv, d_k), after RoPE
        q, self.k = turned.split([heads, kv_heads], dim=1)  # (B, H, d_k), (B, H_kv, d_k)
        self.turn = partial(torch.mm, qk[0], out=turned[0]) if rows == 1 else partial(torch.bmm, qk, out=turned)
        # The query heads of a group are as many queries of one key/value head: nothing is repeated.
        self.q = q.view(rows, kv_heads, heads // kv_heads, d_k)  # (B, H_kv, group, d_k)
        self.gated = isinstance(mlp, SwiGLU)
        self.wide = Product(rows, mlp.w_1, mlp.w_3) if self.gated else Product(rows, mlp.w_1)
        self.parts = self.wide.out.chunk(2 if self.gated else 1, dim=1)  # (B, d_ff) each
        self.activation = None if self.gated else mlp.activation
        self.w_2 = Product(rows, mlp.w_2)

    def products(self) -> tuple[Product, ...]:
        return self.qkv, self.w_o, self.wide, self.w_2

    def __call__(self, x: Tensor, turn, mask, new_k: Tensor, new_v: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, d_model) -> (B, d_model). new_k, new_v: (B, H_kv, d_k), the last places of k, v: (B, H_kv, T, d_k)."""
        if self.pre_norm:
            x = self.add(x, self.attend(self.attention_norm(x), turn, mask, new_k, new_v, k, v))
            return self.add(x, self.feed(self.mlp_norm(x)))
        x = self.attention_norm(self.add(x, self.attend(x, turn, mask, new_k, new_v, k, v)))
        return self.mlp_norm(self.add(x, self.feed(x)))

    def add(self, x: Tensor, update: Tensor) -> Tensor:
        return update.add_(x) if self.residual else update

    def attend(self, y: Tensor, turn, mask, new_k, new_v, k, v) -> Tensor:
        self.qkv(y)
        if turn is not None:
            self.turn(turn)
        new_k.copy_(self.k)
        new_v.copy_(self.v)
        heads = F.scaled_dot_product_attention(self.q, k, v, attn_mask=mask, scale=self.scale)  # (B, H_kv, group, d_k)
        return self.w_o(heads.reshape(len(y), -1))  # (B, d_model)

    def feed(self, y: Tensor) -> Tensor:
        self.wide(y)
        if self.gated:
            first, second = self.parts
            return self.w_2(F.silu(first).mul_(second))  # (B, d_model)
        (wide,) = self.parts
        wide = F.relu(wide) if self.activation == "relu" else F.gelu(wide, approximate="tanh")
        return self.w_2(wide)  # (B, d_model)


class Product:
    """y = x Wᵀ + b for few rows x, of linear layers that read the same x, side by side. y always goes to `out`."""

    def __init__(self, rows: int, *linears: nn.Linear):
        weights = [linear.weight.detach() for linear in linears]  # (outputs, inputs) each
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)  # (outputs, inputs)
        # (inputs, outputs), turned at once: twice as fast as in parts. A matrix of one row is copied too.
        self.weight = weight.t().clone(memory_format=torch.contiguous_format)
        biased = linears[0].bias is not None
        self.bias = torch.cat([linear.bias.detach() for linear in linears]) if biased else None  # (outputs,)
        self.out = self.weight.new_empty(rows, self.weight.shape[1])  # (B, outputs)
        self.nbytes = self.weight.nbytes + (self.bias.nbytes if biased else 0)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        if self.bias is None:
            return torch.mm(x, self.weight, out=self.out)
        return torch.addmm(self.bias, x, self.weight, out=self.out)


def norm_of_rows(norm: nn.Module | None, rows: int) -> Callable[[Tensor], Tensor]:
    """The norm of every row, (B, d_model) -> (B, d_model)."""
    if norm is None:
        return lambda x: x
    weight, eps, d = norm.weight.detach(), norm.eps, norm.weight.numel()
    if isinstance(norm, LayerNorm):
        bias = norm.bias.detach()
        return lambda x: F.layer_norm(x, (d,), weight, bias, eps)
    if rows > 1:
        return lambda x: F.rms_norm(x, (d,), weight, eps)

    def rms(x: Tensor) -> Tensor:  # of a single row: one number of Python is faster than a tensor
        row = x[0]  # (d_model,)
        return (x * (torch.dot(row, row).item() / d + eps) ** -0.5).mul_(weight)

    return rms


def rotation_matrix(cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE as matrices R, (…, d_k, d_k): x R is `positions.rotate` of rows x. cos, sin: (…, d_k / 2)."""
    cos, sin = torch.diag_embed(cos), torch.diag_embed(sin)  # (…, d_k / 2, d_k / 2)
    return torch.cat([torch.cat([cos, sin], dim=-1), torch.cat([-sin, cos], dim=-1)], dim=-2)  # (…, d_k, d_k)


def checked_copy(model: nn.Module, cache: KVCache, tokens: Tensor, logits: Tensor, steps: int) -> DecodeCopy | None:
    """A copy for the `steps` that follow, or None where the readable path has to go on.

    logits: (B, V), what the model gave for `tokens` (B,), the last ones in the cache. The copy must give the same, so
    that whatever was changed in the library or in the model's code, for a lesson or by a reader, still shows.
    """
    if steps < FEWEST_STEPS or not is_plain(model, cache):
        return None
    copy, at = DecodeCopy(model, cache.max_len, cache.batch_size), cache.length - 1
    places = cache.keys[:, :, :, at], cache.values[:, :, :, at]  # (L, B, H_kv, d_k) each
    before = [place.clone() for place in places]  # what the model has stored for `tokens`
    again = copy.logits(tokens, cache)  # (B, V)
    for place, stored in zip(places, before):
        place.copy_(stored)
    return copy if torch.allclose(again, logits, atol=CLOSE, rtol=CLOSE) else None


def is_plain(model: nn.Module, cache: KVCache) -> bool:
    """Whether these are few sequences of a decoder of known parts that nobody looks into."""
    weights = list(model.parameters())
    return (
        cache.batch_size <= MOST_ROWS
        and model.cfg.positions != "alibi"
        and {type(part) for part in model.modules()} <= KNOWN
        and not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
        and all(part.listener is None for part in model.modules() if isinstance(part, Tapped))
        and {(weight.dtype, weight.device.type) for weight in weights} == {(torch.float32, "cpu")}
        and sum(weight.nbytes for weight in weights) <= LARGEST_COPY
    )
