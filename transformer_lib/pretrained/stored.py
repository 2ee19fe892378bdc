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
    if not stored.shape or stored.shape[0] % d_k:
        raise ValueError(
            f"{stored.file}: tensor {stored.name} of shape {stored.shape} cannot be cut into heads of {d_k} rows."
        )
    return stored.then(stored.shape, lambda w: reorder_heads(w, interleaved_to_half_split(d_k)))


def reorder_heads(w: Tensor, order: Tensor) -> Tensor:
    """Rows of a projection (H · d_k, …), taken in `order` (d_k,) within each head."""
    return w.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)  # (H · d_k, …)


def zero_biases(tensors: dict[str, Stored], part: str) -> dict[str, Stored]:
    """Zeros as biases of the linear layers of `part` (".attention." or ".mlp."): a config has them in both or none."""
    zeros = {}
    for name, stored in tensors.items():
        if part in name and name.endswith(".bias"):
            raise ValueError(f"{stored.file}: tensor {stored.name} is there, though the config says no such bias.")
        if part in name and name.endswith(".weight"):
            rows = stored.shape[:1]
            zeros[name.removesuffix("weight") + "bias"] = replace(
                stored, shape=rows, read=lambda rows=rows: torch.zeros(rows)
            )
    return zeros


def make_config(file: Path, **fields) -> TransformerConfig:
    """A config out of a file's numbers; what is wrong with them is said of the file."""
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


@dataclass(frozen=True)
class Checked:
    """A model whose every tensor is known to be there, in the right shape, and is not read yet."""

    empty: Transformer
    tensors: dict[str, Stored]

    def read(self, dtype: torch.dtype = torch.float32) -> Transformer:
        """The model, its weights read and converted to dtype one by one: there is never a second copy of all."""
        model = self.empty
        for name, _ in list(model.named_parameters()):
            layer, _, kind = name.rpartition(".")
            values = torch.empty(self.tensors[name].shape, dtype=dtype).copy_(self.tensors[name].read())
            setattr(model.get_submodule(layer), kind, nn.Parameter(values))
        if model.cfg.tie_embeddings:
            model.unembedding.weight = model.embedding.weight
        return model.eval()


def check(
    cfg: TransformerConfig, tensors: dict[str, Stored], file: Path, name_in_file: Callable[[str], str] = str
) -> Checked:
    """Compare what lies in the file with what a model of shape `cfg` needs; no weight is read.

    tensors: parameter name of this library -> where it lies. name_in_file: that name in the words of the file.
    Raises ValueError for a tensor that is missing, left over, or of another shape.
    """
    check_blocks(cfg, tensors, file, name_in_file)
    model = empty_model(cfg, file)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        expected = tuple(parameter.shape)
        if name not in tensors:
            raise ValueError(f"{file}: tensor {name_in_file(name)} of shape {expected} is missing.")
        stored = tensors[name]
        if stored.shape != expected:
            raise ValueError(
                f"{stored.file}: tensor {stored.name} gives shape {stored.shape} for {name}, "
                f"where the config asks for {expected}."
            )
    for name in sorted(tensors.keys() - parameters.keys()):
        stored = tensors[name]
        raise ValueError(
            f"{stored.file}: tensor {stored.name} of shape {stored.shape} has no place in a model of this config."
        )
    return Checked(model, tensors)


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
