"""Tensors that still lie in a file, and the model made of them: everything is checked before a weight is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.model import Transformer
from transformer_lib.positions import interleaved_to_half_split

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, not read yet.

    name: what the file calls it. shape: of what `read()` returns, a tensor that may be a view of the mapped file.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    def then(self, shape: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> Stored:
        """This tensor, cut or rearranged by `change` when it is read."""
        return replace(self, shape=shape, read=lambda: change(self.read()))


def mapped(file: Path, offset: int, shape: tuple[int, ...], dtype="<f4") -> Tensor:
    """The numbers at `offset`, mapped: only what is touched is read, and the map goes when the tensor goes."""
    return torch.from_numpy(np.memmap(file, dtype, "c", offset, shape))


def half_split(stored: Stored, d_k: int) -> Stored:
    """The rows of a query or key projection (or its bias), from the interleaved RoPE layout to the half-split one."""
    return stored.then(stored.shape, lambda w: reorder_heads(w, interleaved_to_half_split(d_k)))


def reorder_heads(w: Tensor, order: Tensor) -> Tensor:
    """Rows of a projection (H · d_k, …), taken in `order` (d_k,) within each head."""
    return w.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)  # (H · d_k, …)


def make_config(file: Path, **fields) -> TransformerConfig:
    """A config out of a file's numbers; what is wrong with them is said of the file."""
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def assemble(
    cfg: TransformerConfig,
    tensors: dict[str, Stored],
    file: Path,
    dtype: torch.dtype = torch.float32,
    name_in_file: Callable[[str], str] = str,
) -> Transformer:
    """The model of shape `cfg` with these tensors as its parameters, converted to dtype one by one.

    tensors: parameter name of this library -> where it lies. name_in_file: that name in the words of the file.
    Raises ValueError for a tensor that is missing, left over, or of another shape; no weight is read before.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}; got {dtype}.")
    check_blocks(cfg, tensors, file, name_in_file)
    model = empty_model(cfg, file)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if name not in tensors:
            raise ValueError(
                f"{file}: tensor {name_in_file(name)} is missing; expected shape {tuple(parameter.shape)}."
            )
        stored = tensors[name]
        if stored.shape != parameter.shape:
            raise ValueError(
                f"{stored.file}: tensor {stored.name} gives shape {stored.shape} for {name}, "
                f"where the config asks for {tuple(parameter.shape)}."
            )
    for name in sorted(tensors.keys() - parameters.keys()):
        stored = tensors[name]
        raise ValueError(
            f"{stored.file}: tensor {stored.name} of shape {stored.shape} has no place in a model of this config."
        )
    for name in parameters:
        layer, _, kind = name.rpartition(".")
        values = torch.empty(tensors[name].shape, dtype=dtype).copy_(tensors[name].read())
        setattr(model.get_submodule(layer), kind, nn.Parameter(values))
    if cfg.tie_embeddings:
        model.unembedding.weight = model.embedding.weight
    return model.eval()


def check_blocks(cfg: TransformerConfig, tensors: dict[str, Stored], file: Path, name_in_file) -> None:
    """Compare the number of blocks before a model with that many is made: a damaged header may say billions."""
    found = {int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")}
    if len(found) < cfg.n_layers:
        missing = next(i for i in range(cfg.n_layers) if i not in found)
        raise ValueError(
            f"{file}: tensor {name_in_file(f'blocks.{missing}.attention_norm.weight')} is missing: "
            f"the config says {cfg.n_layers} blocks, and the tensors are those of {len(found)}."
        )


def empty_model(cfg: TransformerConfig, file: Path) -> Transformer:
    """A model without memory: shapes only."""
    try:
        with torch.device("meta"):
            return Transformer(cfg)
    except (RuntimeError, TypeError, OverflowError):
        raise ValueError(
            f"{file}: no machine can hold a tensor of vocab_size={cfg.vocab_size}, d_model={cfg.d_model}, "
            f"d_ff={cfg.ff_width}; the file is damaged, or no model at all."
        ) from None
