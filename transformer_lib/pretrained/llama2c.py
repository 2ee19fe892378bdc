"""Karpathy's llama2.c files (.bin): a header of seven integers, then every weight as float32, in a fixed order.

The legacy format (version 0) has nothing but the seven; version 1 has a magic number, a version and padding to 256
bytes. Both hold the query and key rows in the interleaved RoPE layout. A vocabulary is not in the file.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import torch

from transformer_lib.config import TransformerConfig
from transformer_lib.model import Transformer
from transformer_lib.positions import interleaved_to_half_split, rotation
from transformer_lib.pretrained.saving import check_describable, replacing
from transformer_lib.pretrained.stored import Checked, Stored, check, half_split, make_config, mapped, reorder_heads

MAGIC = 0x616B3432  # "ak42"
COUNTS = struct.Struct("<7i")  # d_model, d_ff, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len
VERSION_1 = struct.Struct("<Ii7iB")  # magic, version, the same seven, whether the unembedding is the embedding
VERSION_1_BYTES = 256
ANGLES = "angles"  # the legacy format stores RoPE's cosines and sines; they are computed here


def check_llama2c(path: Path) -> Checked:
    """The model in a llama2.c file. Raises ValueError if its size is not exactly what its header says."""
    cfg, version, at = read_header(path)
    parts = order(cfg, version)
    expected, found = at + sum(4 * math.prod(shape) for _, shape in parts), path.stat().st_size
    if found != expected:
        kind = "cut short" if found < expected else "no llama2.c file"
        raise ValueError(
            f"{path} has {found:,} bytes, but its header (d_model={cfg.d_model}, d_ff={cfg.d_ff}, "
            f"n_layers={cfg.n_layers}, n_heads={cfg.n_heads}, n_kv_heads={cfg.n_kv_heads}, "
            f"vocab_size={cfg.vocab_size}, max_seq_len={cfg.max_seq_len}) needs {expected:,}: it is damaged or {kind}."
        )
    tensors = {}
    for name, (count, *shape) in parts:
        for i in range(count):
            if name != ANGLES:
                tensors[name.format(i)] = stored(path, name.format(i), at, tuple(shape), cfg.d_k)
            at += 4 * math.prod(shape)
    return check(cfg, tensors, path)


def read_header(path: Path) -> tuple[TransformerConfig, int, int]:
    """The config, the format's version, and where the weights begin."""
    with open(path, "rb") as file:
        head = file.read(VERSION_1.size)
    version, begin, shared = 0, COUNTS.size, None
    if head[:4] == struct.pack("<I", MAGIC) and len(head) == VERSION_1.size:
        _, version, *counts, shared = VERSION_1.unpack(head)
        begin = VERSION_1_BYTES
    elif len(head) >= COUNTS.size:
        counts = COUNTS.unpack(head[: COUNTS.size])
    else:
        raise ValueError(f"{path} has {len(head)} bytes: too few for the header of any model.")
    if version not in (0, 1):
        raise ValueError(f"{path} is a llama2.c file of version {version}; versions 0 and 1 (float32) can be read.")
    d_model, d_ff, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len = counts
    if shared is None:  # the legacy format's sign for a separate unembedding is a negative vocabulary
        shared, vocab_size = vocab_size > 0, abs(vocab_size)
    try:
        cfg = make_config(
            path, vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads,
            d_ff=d_ff, max_seq_len=max_seq_len, tie_embeddings=bool(shared),
        )  # fmt: skip
    except ValueError as error:  # any file begins with seven numbers
        raise ValueError(f"{str(error).rstrip('.')}: it is damaged or no llama2.c file.") from None
    return cfg, version, begin


def order(cfg: TransformerConfig, version: int) -> list[tuple[str, tuple[int, ...]]]:
    """What lies in the file, in order: name and (how many, *shape of one)."""
    d, wide, blocks = cfg.d_model, cfg.ff_width, cfg.n_layers
    q_rows, kv_rows = cfg.n_heads * cfg.d_k, cfg.kv_heads * cfg.d_k
    attention_norm = ("blocks.{}.attention_norm.weight", (blocks, d))
    mlp_norm = ("blocks.{}.mlp_norm.weight", (blocks, d))
    final_norm = ("final_norm.weight", (1, d))
    embedding = ("embedding.weight", (1, cfg.vocab_size, d))
    attention = [
        ("blocks.{}.attention.w_q.weight", (blocks, q_rows, d)),
        ("blocks.{}.attention.w_k.weight", (blocks, kv_rows, d)),
        ("blocks.{}.attention.w_v.weight", (blocks, kv_rows, d)),
        ("blocks.{}.attention.w_o.weight", (blocks, d, q_rows)),
    ]
    mlp = [
        ("blocks.{}.mlp.w_1.weight", (blocks, wide, d)),
        ("blocks.{}.mlp.w_2.weight", (blocks, d, wide)),
        ("blocks.{}.mlp.w_3.weight", (blocks, wide, d)),
    ]
    angles = (ANGLES, (2, cfg.max_seq_len, cfg.d_k // 2))
    unembedding = [] if cfg.tie_embeddings else [("unembedding.weight", (1, cfg.vocab_size, d))]
    if version == 0:
        return [embedding, attention_norm, *attention, mlp_norm, *mlp, final_norm, angles, *unembedding]
    return [attention_norm, mlp_norm, final_norm, embedding, *attention, *mlp, *unembedding]


def stored(path: Path, name: str, at: int, shape: tuple[int, ...], d_k: int) -> Stored:
    tensor = Stored(path, name, shape, lambda: mapped(path, at, shape))
    return half_split(tensor, d_k) if name.endswith(("w_q.weight", "w_k.weight")) else tensor


def save_llama2c(model: Transformer, path: str | os.PathLike, version: int = 0) -> None:
    """Write `model` as a llama2.c file: whole, or not at all. Its vocabulary is to be saved beside it.

    version: 0, which llama2.c's run.c reads, or 1. Raises ValueError for a model that the format cannot describe.
    """
    if version not in (0, 1):
        raise ValueError(f"version must be 0 or 1; got {version!r}.")
    cfg, parameters = model.cfg, dict(model.named_parameters())
    check_describable(
        cfg, "a llama2.c file", positions="rope", norm="rmsnorm", norm_position="pre", activation="swiglu", bias=False,
        causal=True, rope_theta=10_000.0, norm_eps=1e-5, rope_scaling=None, embedding_scale=False, scale_scores=True,
        residual=True, d_k=cfg.d_model / cfg.n_heads,
    )  # fmt: skip
    back = interleaved_to_half_split(cfg.d_k).argsort()  # (d_k,)
    with replacing(path) as file:
        file.write(header(cfg, version))
        for name, (count, *_) in order(cfg, version):
            if name == ANGLES:
                for table in rotation(torch.arange(cfg.max_seq_len), cfg.d_k):  # (max_seq_len, d_k / 2) each
                    file.write(table.numpy().astype("<f4").tobytes())
                continue
            for i in range(count):
                weight = parameters[name.format(i)].detach().float().cpu()
                if name.endswith(("w_q.weight", "w_k.weight")):
                    weight = reorder_heads(weight, back)
                file.write(weight.numpy().astype("<f4").tobytes())


def header(cfg: TransformerConfig, version: int) -> bytes:
    sign = 1 if cfg.tie_embeddings or version == 1 else -1
    counts = (
        cfg.d_model,
        cfg.ff_width,
        cfg.n_layers,
        cfg.n_heads,
        cfg.kv_heads,
        sign * cfg.vocab_size,
        cfg.max_seq_len,
    )
    if version == 0:
        return COUNTS.pack(*counts)
    return VERSION_1.pack(MAGIC, 1, *counts, cfg.tie_embeddings).ljust(VERSION_1_BYTES, b"\0")
