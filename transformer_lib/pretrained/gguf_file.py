"""GGUF files of the Llama architecture: llama.cpp's format, whose weights are mostly quantised.

The `gguf` package reads the header and turns quantised blocks into float32. llama.cpp keeps the query and key rows in
the interleaved RoPE layout.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.positions import stretch
from transformer_lib.pretrained.names import GGUF, name_here, name_in_file
from transformer_lib.pretrained.stored import Checked, Stored, check, half_split, make_config, zero_biases

ROPE_FACTORS = "rope_freqs.weight"  # by what each frequency is divided, where Llama 3.1's scaling is used
LLAMA_3_LENGTHS = (1.0, 4.0, 8192)  # low and high factor and original length of every Llama 3.1, 3.2 and 3.3
KNOWN = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "tensor_data_layout",
    "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length",
    "attention.value_length", "rope.freq_base", "rope.dimension_count",
}  # fmt: skip
NEUTRAL = {"rope.scaling.type": "none", "expert_count": 0, "expert_used_count": 0}


class Reader(gguf.GGUFReader):
    """The package's reader, which does not notice the end of a file: a damaged count would let it run for hours."""

    def _get(self, offset, dtype, count=1, override_order=None):
        self.data = np.asarray(self.data)  # the same map, without np.memmap's slow slicing
        values = super()._get(offset, dtype, count, override_order)
        if len(values) != int(count):
            raise ValueError(f"it ends before byte {int(offset) + int(count) * np.dtype(dtype).itemsize:,}")
        return values


def open_gguf(path: Path) -> tuple[dict, dict[str, Stored]]:
    """The metadata and the tensors of a GGUF file, by their names there; no weight is read."""
    try:
        reader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # on a damaged file the package raises whatever happens first
        raise ValueError(f"{path} is a damaged or incomplete GGUF file: {error}.") from None
    if reader.byte_order != "I":
        raise ValueError(f"{path} was written for machines of the other byte order; convert it again for this one.")
    return fields, {tensor.name: stored(path, tensor) for tensor in reader.tensors}


def stored(path: Path, tensor: gguf.ReaderTensor) -> Stored:
    """Where a tensor lies. Its type is tried on one block of zeros, so that an unknown one is refused now."""
    kind, offset, raw, raw_shape = tensor.tensor_type, tensor.data_offset, tensor.data.dtype, tensor.data.shape
    try:
        dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        raise ValueError(
            f"{path}: tensor {tensor.name} is stored as {kind.name}, which the gguf package cannot turn into floats."
        ) from None

    def read() -> Tensor:
        blocks = np.asarray(np.memmap(path, raw, "c", offset, raw_shape))
        return torch.from_numpy(dequantize(blocks, kind))

    return Stored(path, tensor.name, tuple(int(n) for n in reversed(tensor.shape)), read)


def check_gguf(path: Path, fields: dict, found: dict[str, Stored]) -> Checked:
    """The model in a GGUF file that `open_gguf` opened. Raises ValueError for what these layers do not have."""
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{path}: the architecture is {architecture!r}; only GGUF files of 'llama' can be read.")
    if fields.get("split.count") not in (None, 0, 1):
        raise ValueError(f"{path} is one of {fields['split.count']} parts; join them with llama.cpp's gguf-split.")
    factors = found.pop(ROPE_FACTORS, None)
    tensors = {}
    for name, tensor in found.items():
        ours = name_here(GGUF, name)
        if ours is None:
            raise ValueError(f"{path}: tensor {name} of shape {tensor.shape} belongs to no layer here.")
        tensors[ours] = tensor
    cfg = read_config(path, fields, tensors, factors)
    for name in tensors:
        if ".w_q." in name or ".w_k." in name:
            tensors[name] = half_split(tensors[name], cfg.d_k)
    if cfg.bias:
        for part in (".attention.", ".mlp."):
            if not any(part in name and name.endswith(".bias") for name in tensors):
                tensors |= zero_biases(tensors, part)
    return check(cfg, tensors, path, lambda name: name_in_file(GGUF, name))


def read_config(path: Path, fields: dict, tensors: dict[str, Stored], factors: Stored | None) -> TransformerConfig:
    """The config out of the metadata `llama.*`; a key that is not known could mean another computation."""
    given = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    for name, value in given.items():
        if name not in KNOWN and NEUTRAL.get(name) != value:
            raise ValueError(f"{path}: llama.{name} is {value!r}, which these layers do not have.")
    needed = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
    for name in needed:
        if name not in given:
            raise ValueError(f"{path} does not say llama.{name}.")
    if "embedding.weight" not in tensors:
        raise ValueError(f"{path}: tensor token_embd.weight is missing.")
    d_model, heads = given["embedding_length"], given["attention.head_count"]
    cfg = make_config(
        path, vocab_size=given.get("vocab_size", tensors["embedding.weight"].shape[0]), d_model=d_model,
        n_layers=given["block_count"], n_heads=heads, n_kv_heads=given.get("attention.head_count_kv"),
        head_dim=given.get("attention.key_length"), d_ff=given["feed_forward_length"],
        max_seq_len=given["context_length"], rope_theta=given.get("rope.freq_base", 10_000.0),
        norm_eps=round_trip(given.get("attention.layer_norm_rms_epsilon", 1e-5)),
        tie_embeddings="unembedding.weight" not in tensors, bias=any(name.endswith(".bias") for name in tensors),
    )  # fmt: skip
    for name in ("rope.dimension_count", "attention.value_length"):
        if given.get(name, cfg.d_k) != cfg.d_k:
            raise ValueError(f"{path}: llama.{name} is {given[name]}; these layers have only d_k={cfg.d_k}.")
    if cfg.head_dim is not None and cfg.head_dim * cfg.n_heads == cfg.d_model:
        cfg = cfg.replace(head_dim=None)
    return cfg if factors is None else cfg.replace(rope_scaling=llama_3_scaling(cfg, factors))


def round_trip(number):
    """A float32 as it was written: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def llama_3_scaling(cfg: TransformerConfig, factors: Stored) -> tuple[float, float, float, int]:
    """The four numbers of Llama 3.1's scaling, which a GGUF file gives only by their effect on each frequency."""
    if factors.shape != (cfg.d_k // 2,):
        raise ValueError(f"{factors.file}: tensor {factors.name} has shape {factors.shape}, not {(cfg.d_k // 2,)}.")
    given = factors.read().double()  # (d_k / 2,)
    scaling = (float(given.max()), *LLAMA_3_LENGTHS)
    frequencies = cfg.rope_theta ** (-torch.arange(0, cfg.d_k, 2, dtype=torch.float64) / cfg.d_k)  # (d_k / 2,)
    expected = frequencies / stretch(frequencies, *scaling)  # (d_k / 2,)
    if not given.max() >= 1 or not torch.allclose(given, expected, rtol=1e-4):
        raise ValueError(
            f"{factors.file}: tensor {factors.name} scales RoPE otherwise than Llama 3.1 does "
            f"(low_freq_factor, high_freq_factor, original length = {LLAMA_3_LENGTHS})."
        )
    return scaling
