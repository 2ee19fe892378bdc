"""The tokenizer that belongs to a model."""

from __future__ import annotations

import os
from pathlib import Path

from transformer_lib.tokenizer import Tokenizer


def load_tokenizer(path, tokenizer):
    return Tokenizer.load(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer


def beside(path: Path):
    """The tokenizer of the one .model file in the folder of `path`."""
    found = sorted(path.parent.glob("*.model"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"{path} holds no vocabulary, and there must be one .model file beside it ({names} found); "
            f"name it with load_pretrained(path, tokenizer=…)."
        )
    return Tokenizer.load(found[0])
