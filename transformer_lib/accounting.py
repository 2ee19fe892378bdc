"""Counting without building: the parameters, FLOPs and bytes of a config, in closed form.

A FLOP is one multiplication or one addition; a product with a weight is one of each. GB are powers of 1,000 and GiB
powers of 1,024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from transformer_lib.checks import check_whole
from transformer_lib.config import TransformerConfig

# --- Parameters ---


class Row(NamedTuple):
    """One tensor that is stored: `part.tensor` is its name in the model, `shape` its shape, `count` its numbers."""

    part: str
    tensor: str
    shape: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class ParameterCount:
    """rows: every stored tensor once (a tied unembedding is the embedding's, and has no row).

    multiplying: the weights that each token is multiplied with: all matrices but the tables that are looked up in, and
    the unembedding even where it is tied; no biases and no norms.
    """

    rows: tuple[Row, ...]
    multiplying: int

    @property
    def total(self) -> int:
        return sum(row.count for row in self.rows)

    def part(self, prefix: str) -> int:
        """The numbers in all tensors whose full name starts with `prefix`: "blocks.0.attention." for example."""
        return sum(row.count for row in self.rows if f"{row.part}.{row.tensor}".startswith(prefix))


def count_parameters(cfg: TransformerConfig) -> ParameterCount:
    """Every tensor of the model, without making it; for an encoder-decoder config, of both stacks."""
    check_config(cfg)
    rows = tuple(Row(part, tensor, shape, math.prod(shape)) for part, tensor, shape in tensors(cfg))
    looked_up = ("embedding", "position_embedding")
    multiplying = sum(row.count for row in rows if len(row.shape) == 2 and row.part not in looked_up)
    return ParameterCount(rows, multiplying + (cfg.vocab_size * cfg.d_model if cfg.tie_embeddings else 0))


def tensors(cfg: TransformerConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(part, tensor, shape) of all parameters, in the order in which data meets them."""
    final_norm = list(norm("", cfg)) if cfg.norm_position == "pre" else []
    yield "embedding", "weight", (cfg.vocab_size, cfg.d_model)
    if cfg.positions == "learned":
        yield "position_embedding", "weight", (cfg.max_seq_len, cfg.d_model)
    for i in range(cfg.n_encoder_layers):
        yield from ((f"encoder.blocks.{i}", name, shape) for name, shape in block(cfg, cross=False))
    if cfg.n_encoder_layers:
        yield from (("encoder.final_norm", name, shape) for name, shape in final_norm)
    for i in range(cfg.n_layers):
        yield from ((f"blocks.{i}", name, shape) for name, shape in block(cfg, cross=cfg.n_encoder_layers > 0))
    yield from (("final_norm", name, shape) for name, shape in final_norm)
    if not cfg.tie_embeddings:
        yield "unembedding", "weight", (cfg.vocab_size, cfg.d_model)


def block(cfg: TransformerConfig, cross: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    q, kv = cfg.n_heads * cfg.d_k, cfg.kv_heads * cfg.d_k
    for attention in ("attention", "cross_attention") if cross else ("attention",):
        yield from norm(f"{attention}_norm.", cfg)
        for name, width in (("w_q", q), ("w_k", kv), ("w_v", kv)):
            yield from linear(f"{attention}.{name}", cfg.d_model, width, cfg.bias)
        yield from linear(f"{attention}.w_o", q, cfg.d_model, cfg.bias)
    yield from norm("mlp_norm.", cfg)
    for name in ("w_1", "w_3") if cfg.activation == "swiglu" else ("w_1",):
        yield from linear(f"mlp.{name}", cfg.d_model, cfg.ff_width, cfg.bias)
    yield from linear("mlp.w_2", cfg.ff_width, cfg.d_model, cfg.bias)


def linear(name: str, inputs: int, outputs: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def norm(prefix: str, cfg: TransformerConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}weight", (cfg.d_model,)
    if cfg.norm == "layernorm":
        yield f"{prefix}bias", (cfg.d_model,)


# --- FLOPs ---


@dataclass(frozen=True)
class Flops:
    """weights: products with weights. attention: scores and averages over the visible pairs, which use no weights.

    masked: what is spent on the pairs that the causal mask hides, by code that computes the whole square; not in total.
    """

    weights: int
    attention: int
    masked: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.attention


def flops_per_token(cfg: TransformerConfig, context: int = 4096) -> Flops:
    """The forward pass of one token that sees `context` tokens, itself included. Training costs three times as much.

    2 FLOPs per multiplying weight, and 4 · context · H · d_k per attention: context · H · d_k multiply-adds for the
    scores, and as many for the average. For an encoder-decoder: of one source token and one target token together,
    with `context` tokens in both (its cross-attention sees the whole source).
    """
    check_whole("context", context)
    attentions = attention_layers(cfg)
    return Flops(2 * count_parameters(cfg).multiplying, 4 * context * cfg.n_heads * cfg.d_k * attentions)


def flops_per_sequence(cfg: TransformerConfig, tokens: int) -> Flops:
    """The forward pass over a whole sequence (for an encoder-decoder: over a source and a target of this length).

    Under the causal mask, tokens · (tokens + 1) / 2 of the pairs are visible.
    """
    check_whole("tokens", tokens)
    last = flops_per_token(cfg, tokens)
    causal = cfg.n_layers if cfg.causal else 0
    masked = 4 * (tokens * (tokens - 1) // 2) * cfg.n_heads * cfg.d_k * causal
    return Flops(tokens * last.weights, tokens * last.attention - masked, masked)


def attention_layers(cfg: TransformerConfig) -> int:
    """Attentions that one token (of each stack) goes through."""
    check_config(cfg)
    return cfg.n_layers * (2 if cfg.n_encoder_layers else 1) + cfg.n_encoder_layers


# --- Bytes ---


def weight_bytes(cfg: TransformerConfig, bytes_per_number: int = 2) -> int:
    """Bytes of all parameters; 2 per number in 16-bit, 4 in float32."""
    check_whole("bytes_per_number", bytes_per_number)
    return count_parameters(cfg).total * bytes_per_number


def kv_cache_bytes(cfg: TransformerConfig, tokens: int, batch_size: int = 1, bytes_per_number: int = 2) -> int:
    """A key and a value per token, layer and key/value head: 2 · L · B · H_kv · tokens · d_k numbers.

    What an encoder-decoder's cross-attention keeps of its source is as much again, for the source's tokens.
    """
    check_config(cfg)
    for name, value in (("tokens", tokens), ("batch_size", batch_size), ("bytes_per_number", bytes_per_number)):
        check_whole(name, value)
    return 2 * cfg.n_layers * batch_size * cfg.kv_heads * tokens * cfg.d_k * bytes_per_number


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes, apart: moments are Adam's two averages per parameter, activations what the backward pass needs."""

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


def training_memory(cfg: TransformerConfig, tokens: int, batch_size: int = 1) -> TrainingMemory:
    """Training in float32 with Adam, on sequences of this length (an encoder-decoder: on pairs of them).

    Activations are those that autograd keeps for this library's layers with fused attention; attention in the open
    keeps several times B · H · T² numbers more per layer.
    """
    check_whole("tokens", tokens)
    check_whole("batch_size", batch_size)
    parameters = 4 * count_parameters(cfg).total
    activations = 4 * batch_size * tokens * activations_per_token(cfg)
    return TrainingMemory(parameters, parameters, 2 * parameters, activations)


def activations_per_token(cfg: TransformerConfig) -> int:
    """Numbers that autograd keeps per token from the forward to the backward pass."""
    d, q, kv, dropped = cfg.d_model, cfg.n_heads * cfg.d_k, cfg.kv_heads * cfg.d_k, cfg.d_model * (cfg.dropout > 0)
    # A norm keeps two vectors, its output among them, and the size it divided by; LayerNorm the mean too.
    norm_ = 2 * d + (2 if cfg.norm == "layernorm" else 1)
    attention = norm_ + 2 * q + 2 * kv + cfg.n_heads + dropped  # queries, heads; keys, values; one log-sum per head
    mlp = norm_ + {"swiglu": 4, "gelu": 2, "relu": 1}[cfg.activation] * cfg.ff_width + dropped
    final = norm_ if cfg.norm_position == "pre" else d  # post-norm: the embedding, which the first block reads
    stacks = 2 if cfg.n_encoder_layers else 1
    layers = cfg.n_layers + cfg.n_encoder_layers
    return (
        attention_layers(cfg) * attention
        + layers * mlp
        + stacks * (final + dropped)
        + cfg.vocab_size  # the logarithms of the probabilities
    )


def gb(n_bytes: float) -> str:
    """In powers of 1,000: gb(13_476_831_232) is "13.48 GB"."""
    return in_units(n_bytes, 1000, ("bytes", "kB", "MB", "GB", "TB"))


def gib(n_bytes: float) -> str:
    """In powers of 1,024: gib(13_476_831_232) is "12.55 GiB"."""
    return in_units(n_bytes, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))


def in_units(n_bytes: float, base: int, units: tuple[str, ...]) -> str:
    power = next((i for i in range(len(units) - 1) if round(n_bytes / base**i, 2) < base), len(units) - 1)
    return f"{n_bytes / base**power:,.2f}".rstrip("0").rstrip(".") + f" {units[power]}"


def check_config(cfg) -> None:
    """Other kinds of config have other tensors: their models are counted by building them on the meta device."""
    if type(cfg) is not TransformerConfig:
        raise TypeError(f"cfg must be a TransformerConfig; got {type(cfg).__name__}.")


# --- The table ---


def parameter_table(cfg: TransformerConfig) -> str:
    """All tensors, a repeated block once, with their shares of the total; what multiplies; bytes. For a terminal."""
    counts = count_parameters(cfg)
    lines = [("part", "tensor", "shape", "numbers", "share"), None]
    for part, rows, copies in grouped(counts.rows):
        for i, row in enumerate(rows):
            shape = " × ".join(f"{n:,}" for n in row.shape)
            lines.append((part if i == 0 else "", row.tensor, shape, f"{row.count:,}", ""))
        one = sum(row.count for row in rows)
        if len(rows) > 1:
            lines.append(("", "one block" if "block" in part else "together", "", f"{one:,}", ""))
        if copies > 1:
            lines.append(("", f"× {copies}", "", f"{one * copies:,}", ""))
        lines[-1] = (*lines[-1][:4], f"{one * copies / counts.total:.2%}")
    if cfg.tie_embeddings:
        lines.append(("unembedding", "the embedding's", "", "0", ""))
    lines += [None, ("total", "", "", f"{counts.total:,}", "100.00%")]
    return "\n".join([*aligned(lines), "", *summary(cfg, counts)])


def grouped(rows: tuple[Row, ...]) -> Iterator[tuple[str, list[Row], int]]:
    """(part, its rows, copies): blocks.0 … blocks.31 become one part "blocks" with 32 copies."""
    for stem, stack in groupby(rows, key=lambda row: row.part.rstrip("0123456789").rstrip(".")):
        copies = [list(copy) for _, copy in groupby(stack, key=lambda row: row.part)]
        yield stem, copies[0], len(copies)


def aligned(lines: list[tuple[str, ...] | None]) -> list[str]:
    """Columns of equal width, names to the left and numbers to the right; None becomes a rule."""
    widths = [max(len(line[i]) for line in lines if line) for i in range(5)]
    sides = "<<<>>"
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths)).rstrip()
        if line
        else "─" * (sum(widths) + 2 * (len(widths) - 1))
        for line in lines
    ]


def summary(cfg: TransformerConfig, counts: ParameterCount) -> list[str]:
    stored, one = 2 * counts.total, counts.part("blocks.0.")
    attention = counts.part("blocks.0.attention.") + counts.part("blocks.0.cross_attention.")
    mlp = counts.part("blocks.0.mlp.")
    flops = in_units(2 * counts.multiplying, 1000, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs"))
    lines = [
        f"one block            attention {attention:,} ({attention / one:.1%}), MLP {mlp:,} ({mlp / one:.1%}), "
        f"norms {one - attention - mlp:,}",
        f"multiplying weights  {counts.multiplying:,}: {flops} forward per token, attention's own aside",
        f"weights in 16-bit    {stored:,} bytes = {gb(stored)} = {gib(stored)}",
    ]
    if cfg.causal:
        token, full = kv_cache_bytes(cfg, 1), kv_cache_bytes(cfg, cfg.max_seq_len)
        lines.append(f"KV cache in 16-bit   {gib(token)} per token, {gib(full)} for {cfg.max_seq_len:,} tokens")
    return lines
