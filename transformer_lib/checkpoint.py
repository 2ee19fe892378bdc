"""Checkpoints: one file that is either whole or not there, and from which nothing is ever executed.

`checkpoint.safetensors` holds named tensors only: the weights (`model.…`), the optimizer's state while training
(`optimizer.…`) and the vocabulary (`tokenizer`, as bytes). Its header holds one JSON text, *about*, with everything
else: the config, the training config, the step, the losses, versions and threads, and a checksum of all of it.

- Being one file, weights, optimizer and JSON always belong to the same step.
- It is written beside its final name, forced to the disk and then renamed: whoever is interrupted at any moment, by
  `kill -9` or a full disk, still has the previous checkpoint.
- Weights that are one tensor in the model (a tied unembedding) are stored once, and are one tensor again when loaded.
- Whatever is wrong with a file, reading it ends in one sentence (ValueError).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.model import EncoderDecoder, Transformer
from transformer_lib.tokenizer import Tokenizer

FILE = "checkpoint.safetensors"
ABOUT = "transformer_lib"  # the header's entry with the JSON text
FORMAT = 1  # raised when an older reader could not understand a newer file


def save_model(model: nn.Module, folder, tokenizer: Tokenizer | None = None) -> None:
    """Write weights, config and vocabulary into `folder`; `load_model` and `load_tokenizer` read them back."""
    write_checkpoint(folder, model_tensors(model) | tokenizer_tensor(tokenizer), describe_model(model))


def load_model(folder) -> Transformer | EncoderDecoder:
    """The model saved in `folder`, by `save_model` or while training; on the CPU, in eval mode."""
    about, tensors = read_checkpoint(folder)
    try:
        kinds = {kind.__name__: kind for kind in (Transformer, EncoderDecoder)}
        model = kinds[about["model"]](TransformerConfig(**about["config"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder} holds a {about.get('model')} that this version cannot build ({error}); "
            f"build it yourself, and read the weights with load_weights(model, folder)."
        ) from None
    fill_model(model, tensors, folder)
    return model.eval()


def load_weights(model: nn.Module, folder) -> None:
    """Copy the weights saved in `folder` into `model`, which must have tensors of the same names and shapes."""
    fill_model(model, read_checkpoint(folder)[1], folder)


def load_tokenizer(folder) -> Tokenizer | None:
    """The vocabulary saved in `folder`, or None where none was saved."""
    tensor = read_checkpoint(folder)[1].get("tokenizer")
    return None if tensor is None else Tokenizer(tensor.numpy().tobytes())


def describe_model(model: nn.Module) -> dict:
    """What a checkpoint says about a model and about the software that wrote it."""
    cfg = getattr(model, "cfg", None)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        versions["transformer_lib"] = version("transformer_lib")
    return {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": None if cfg is None else asdict(cfg),
        "versions": versions,
    }


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight and buffer once, however many names it has: named_parameters goes by identity."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {f"model.{name}": tensor.detach() for name, tensor in named}


@torch.no_grad()
def fill_model(model: nn.Module, tensors: dict[str, Tensor], folder) -> None:
    """Copy saved tensors into a model, all or none."""
    saved = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    own = model_tensors(model)
    if saved.keys() != own.keys():
        odd = sorted(saved.keys() ^ own.keys())[0]
        where = "the checkpoint but not in the model" if odd in saved else "the model but not in the checkpoint"
        raise ValueError(f"{folder} holds another kind of model: {odd.removeprefix('model.')} is in {where}.")
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise ValueError(
                f"{folder} holds a model of another size: {name.removeprefix('model.')} has shape "
                f"{tuple(saved[name].shape)} there and {tuple(tensor.shape)} here."
            )
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state under the names of the weights that it belongs to."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"optimizer.{key}.{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def fill_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    order = {parameter: i for i, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, dict[str, Tensor]] = {i: {} for i in order.values()}
    for full_name, tensor in tensors.items():
        if full_name.startswith("optimizer."):
            _, key, name = full_name.split(".", 2)
            state[order[parameters[name]]][key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def tokenizer_tensor(tokenizer: Tokenizer | None) -> dict[str, Tensor]:
    """The vocabulary's file as a tensor of bytes, so that it is in the same file as the weights."""
    if tokenizer is None:
        return {}
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(
            f"a checkpoint stores a vocabulary of class Tokenizer; got {type(tokenizer).__name__}: save the model "
            f"without it, and keep its file beside the folder."
        )
    with TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.model")
        tokenizer.save(path)
        return {"tokenizer": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)}


def write_checkpoint(folder, tensors: dict[str, Tensor], about: dict) -> None:
    """Replace the checkpoint in `folder` by this one: whole, or not at all."""
    folder = Path(folder)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(about)
    header = {ABOUT: json.dumps({"checksum": checksum(tensors, text), "about": text})}
    part = folder / f"{FILE}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(save(tensors, metadata=header))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, folder / FILE)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"The checkpoint in {folder} cannot be written ({reason(error)}); the last one is kept."
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def read_checkpoint(folder) -> tuple[dict, dict[str, Tensor]]:
    """(about, tensors) of the checkpoint in `folder`, after its checksum was found right."""
    with opened(folder) as file:
        text, expected = read_header(file, folder)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if checksum(tensors, text) != expected:
            raise ValueError(f"{Path(folder, FILE)} is damaged: its contents do not match its checksum; train again.")
    return json.loads(text), tensors


def read_about(folder) -> dict | None:
    """What the checkpoint in `folder` says about itself, without reading its tensors; None where there is none."""
    if not Path(folder, FILE).exists():
        return None
    with opened(folder) as file:
        text, _ = read_header(file, folder)
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{Path(folder, FILE)} is damaged: its header is not JSON; train again.") from None


@contextmanager
def opened(folder):
    """safetensors' reader for the checkpoint in `folder`, with one sentence for whatever is wrong with the file."""
    path = Path(folder, FILE)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ValueError(f"There is no checkpoint in {path.parent} (no file {FILE}).") from None
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({reason(error)}); train again.") from None


def read_header(file, folder) -> tuple[str, str]:
    """(JSON text, checksum)."""
    header = (file.metadata() or {}).get(ABOUT)
    if header is None:
        raise ValueError(
            f"{Path(folder, FILE)} was not written by this library; "
            f"models from elsewhere are read by transformer_lib.pretrained.load_pretrained."
        )
    try:
        header = json.loads(header)
        return header["about"], header["checksum"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{Path(folder, FILE)} is damaged: its header cannot be read; train again.") from None


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 over the JSON text and every tensor's name, dtype, shape and bytes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()


def reason(error: Exception) -> str:
    """The operating system's or safetensors' own short reason."""
    return getattr(error, "strerror", None) or str(error).strip().rstrip(".") or type(error).__name__
