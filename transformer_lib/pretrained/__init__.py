"""Trained models made elsewhere, read into this library's own parts: files on this machine only.

    model, tokenizer = load_pretrained("stories260K.bin")      # llama2.c; the .model file beside it

Nothing is unpickled. Files are memory-mapped and checked before a weight is read, and loading holds one copy of the
weights.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from transformer_lib.model import Transformer
from transformer_lib.pretrained.llama2c import load_llama2c, save_llama2c
from transformer_lib.pretrained.vocabulary import beside, load_tokenizer

__all__ = ["load_pretrained", "save_llama2c"]


def load_pretrained(
    path: str | os.PathLike, tokenizer=None, dtype: torch.dtype = torch.float32
) -> tuple[Transformer, object]:
    """A trained model and its tokenizer, from a llama2.c file (.bin).

    tokenizer: a tokenizer, or the path of one; by default the one that comes with the model.
    dtype: torch.float32, torch.bfloat16 or torch.float16. Returns (model, tokenizer).
    Raises FileNotFoundError if nothing is there, and ValueError, naming the file and what is wrong, for whatever
    cannot be this library's model exactly.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}.")
    tokenizer = load_tokenizer(path, tokenizer) if tokenizer is not None else beside(path)
    return load_llama2c(path, dtype), tokenizer
