"""What the writers of model files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_lib.config import TransformerConfig


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator:
    """A binary file to write, which takes the place of `path` when all went well; else `path` is as it was."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_describable(cfg: TransformerConfig, form: str, **meant) -> None:
    """Refuse a config that `form` cannot say: other programs would read the file and compute something else."""
    for name, value in meant.items():
        if getattr(cfg, name) != value:
            raise ValueError(f"{form} cannot say {name}={getattr(cfg, name)!r}; it always means {value!r}.")
