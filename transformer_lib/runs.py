"""A training run's folder: its lock, its checkpoints, and what is said about it while it goes on."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean

import filelock
import torch
from torch import Tensor
from tqdm import tqdm

from transformer_lib import checkpoint
from transformer_lib.values import shown

LOCK = "training.lock"
# What may differ between the parts of one run: it changes no loss (threads and device do, in the last bits).
MAY_DIFFER = ("eval_every", "save_every", "threads", "device")


class RunIsBusy(RuntimeError):
    """Another process is training into this folder."""


class Run:
    """One run and the folder that it is saved in; without a folder nothing is saved."""

    def __init__(self, model, optimizer, config, history, out, tokenizer, also: dict):
        self.model, self.optimizer, self.config, self.history = model, optimizer, config, history
        if not isinstance(out, str | os.PathLike | None):
            raise TypeError(f"out must be the path of a folder, or None; got {shown(out)}.")
        self.folder = None if out is None else Path(out)
        self.tokenizer = {} if out is None else checkpoint.tokenizer_tensor(tokenizer)
        self.size = sum(parameter.numel() for parameter in model.parameters())
        self.also = also

    @contextmanager
    def locked(self, leads: bool = True) -> Iterator[None]:
        """Only one process, or one team by the process that leads it, may train into a folder.

        The lock ends with the process, however it ends.
        """
        if self.folder is None or not leads:
            yield
            return
        lock = filelock.FileLock(self.folder / LOCK, timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except filelock.Timeout:
            raise RunIsBusy(
                f"Another process is training into {self.folder}: wait for it, or choose another folder."
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise OSError(
                f"Nothing can be saved in {self.folder} ({checkpoint.reason(error)}); choose another folder."
            ) from None
        try:
            for part in self.folder.glob(f"{checkpoint.FILE}.*.part"):
                part.unlink()  # left by a process that was killed while saving
            yield
        finally:
            lock.release()

    def restore(self, resume: bool, first_batch) -> None:
        """Take up the run that is in the folder, if there is one; refuse another one's folder."""
        self.identity = self.also | {
            **checkpoint.describe_model(self.model),
            "train": {k: v for k, v in asdict(self.config).items() if k not in MAY_DIFFER},
            "data": digest(first_batch),
            "vocabulary": digest(self.tokenizer.get("tokenizer")),
        }
        about = None if self.folder is None else checkpoint.read_about(self.folder)
        if about is None:
            return
        if not resume:
            raise ValueError(f"{self.folder} already holds a run: choose another folder, delete it, or resume=True.")
        self.refuse_another(about)
        about, tensors = checkpoint.read_checkpoint(self.folder)
        checkpoint.fill_model(self.model, tensors, self.folder)
        checkpoint.fill_optimizer(self.model, self.optimizer, tensors)
        for item in fields(self.history):
            setattr(self.history, item.name, about["history"][item.name])
        self.history.evaluations = [tuple(pair) for pair in self.history.evaluations]

    def refuse_another(self, about: dict) -> None:
        if "history" not in about:
            raise ValueError(f"{self.folder} holds a model without its training state: choose another folder.")
        there = {"train.precision": "float32"} | flat(about)  # runs from before there was a choice
        here = flat(self.identity)
        differences = [
            f"{name.split('.')[-1]} is {shown(there.get(name))} there and {shown(here[name])} here"
            for name in here
            if not name.startswith("versions.") and there.get(name) != here[name]
        ]
        if differences:
            raise ValueError(
                f"{self.folder} holds another run ({'; '.join(differences[:3])}): choose another folder, or delete "
                f"that one to start anew."
            )

    def save(self) -> None:
        if self.folder is None:
            return
        tensors = {
            **checkpoint.model_tensors(self.model),
            **checkpoint.optimizer_tensors(self.model, self.optimizer),
            **self.tokenizer,
        }
        checkpoint.write_checkpoint(self.folder, tensors, {**self.identity, "history": asdict(self.history)})

    def announce(self, device, progress: bool) -> None:
        """Say what is trained where, on stderr: stored notebooks compare what is printed to stdout."""
        if not progress or static():
            return
        threads = f"{self.history.threads} thread{'s' * (self.history.threads > 1)}"
        where = f"; folder {self.folder}" if self.folder else ""
        again = f"; goes on after step {self.history.step:,}" if self.history.step else ""
        print(
            f"Training {self.size:,} parameters on {device.type} with {threads}{where}{again}",
            file=sys.stderr,
            flush=True,
        )

    def how_to_resume(self) -> str:
        return how_to_resume(self.history.step, self.config.steps, self.folder)


def how_to_resume(done: int, steps: int, folder: Path | None) -> str:
    at = f"Stopped after step {done:,} of {steps:,}"
    if folder is None:
        return f"{at}; nothing was saved, because no folder was given."
    return f"{at}; saved in {folder}. Run the same again to go on from there."


def is_locked(folder) -> bool:
    """Whether a process is training into `folder` at this moment."""
    path = Path(folder, LOCK)
    if not path.exists():
        return False
    try:
        with filelock.FileLock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # a folder that may only be read: whoever trains there has other rights
        return False


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside the block Ctrl-C is only noted, so that no step is left half done; a second one interrupts at once."""
    presses: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    # Only the main thread gets signals, and a process started to ignore Ctrl-C goes on ignoring it.
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield lambda: False
        return

    def press(signum, frame):
        presses.append(signum)
        if len(presses) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, previous)


def static() -> bool:
    """True while notebooks are executed to be stored: their outputs must not hold a progress bar."""
    return bool(os.environ.get("EXPLORER_STATIC"))


@contextmanager
def progress_bar(history, steps: int, wanted: bool) -> Iterator[Callable]:
    """Yields show(history). The plain text bar works in terminals, notebooks and logs alike; it goes to stderr."""
    log = not sys.stderr.isatty() and "ipykernel" not in sys.modules
    with tqdm(
        total=steps,
        initial=history.step,
        disable=not wanted or static(),
        mininterval=10 if log else 0.3,
        dynamic_ncols=not log,
        ncols=100 if log else None,
        bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps, {remaining} left{postfix}",
    ) as bar:

        def show(now) -> None:
            loss = fmean(now.losses[-20:])
            bar.set_postfix_str(f"loss {loss:.3f}, {now.tokens_per_second:,.0f} tokens/s", refresh=False)
            bar.update(now.step - bar.n)

        yield show


def digest(value) -> str | None:
    """A short name for the contents of tensors: two that differ get two names."""
    if value is None:
        return None
    parts = [value] if isinstance(value, Tensor) else value
    total = hashlib.sha256()
    for part in parts:
        total.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()[:16]


def flat(nested: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} -> {"a.b": 1}; tuples become lists, as in JSON."""
    result = {}
    for key, value in nested.items():
        name = prefix + key
        if isinstance(value, dict):
            result |= flat(value, f"{name}.")
        else:
            result[name] = list(value) if isinstance(value, tuple) else value
    return result
