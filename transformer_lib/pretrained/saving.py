"""What the writers of model files share."""

from __future__ import annotations

import os
import shutil
import tempfile
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


@contextmanager
def replacing_files(folder: str | os.PathLike) -> Iterator[Path]:
    """A new folder to write files into, which take their places in `folder` when all went well; other files stay."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        yield part
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(part)


def check_describable(cfg: TransformerConfig, form: str, **meant) -> None:
    """Refuse a config that `form` cannot say: other programs would read the file and compute something else."""
    for name, value in meant.items():
        if getattr(cfg, name) != value:
            raise ValueError(f"{form} cannot say {name}={getattr(cfg, name)!r}; it always means {value!r}.")
