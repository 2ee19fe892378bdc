"""`python -m transformer_lib doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from transformer_lib.pretrained.smollm2 import COMMAND, PACKAGE
from transformer_lib.toy import is_trained, toy_folder

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "matplotlib", "jupyterlab", "ipykernel", "ipywidgets", "sentencepiece", "tokenizers")
TEST_PACKAGES = ("pytest", "hypothesis", "playwright", "transformers", "ruff")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEMORY_NEEDED = 1.5e9  # bytes: a kernel with torch and the toy's training take 0.4 GB each, JupyterLab 0.1 GB
DISK_NEEDED = 1e9  # bytes: room for checkpoints


def report() -> str:
    """What was found, one line each, and under it what to do; ends with a sentence that says whether all is well."""
    advice: list[str] = []
    lines = [f"{name + ':':<15}{finding}" for name, finding in findings(advice)]
    if not advice:
        return "\n".join([*lines, "", "Nothing is missing."])
    return "\n".join([*lines, "", "What to do:", *(f"- {text}" for text in advice)])


def main() -> int:
    print(report())
    return 0


def findings(advice: list[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, finding) pairs; appends to `advice` what the reader should do."""
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        advice.append(f"Python {platform.python_version()} is not tested: use 3.11, 3.12 or 3.13.")
    yield "system", f"{platform.platform()}, {platform.machine()}"
    yield from packages(advice)
    yield "device", device()
    yield "threads", f"{torch.get_num_threads()} for torch, of {cores()} cores"
    yield from room(advice)
    yield "Chromium", chromium() or "not found: the browser tests will be skipped"
    yield "toy model", toy(advice)
    version = installed(PACKAGE)
    yield "real model", f"{PACKAGE} {version}" if version else f"notebook 12 can't run; get it with: {COMMAND}"


def packages(advice: list[str]) -> Iterator[tuple[str, str]]:
    pins = pinned_versions()
    for name in PACKAGES:
        version = installed(name)
        pin = pins.get(name, version)
        if version is None:
            advice.append(f"{name} is not installed: run `make lab`, or `python -m pip install -r requirements.txt`.")
        elif version.split("+")[0] != pin:
            advice.append(f"{name} {version} is not the version that was tested ({pin}): run `make lab` to install it.")
        yield name, version or "not installed"
    missing = [name for name in TEST_PACKAGES if installed(name) is None]
    yield "for the tests", f"not installed: {', '.join(missing)} (`make test` does)" if missing else "all installed"


def pinned_versions() -> dict[str, str]:
    """The exact versions in requirements.txt; nothing where the package was installed without its checkout."""
    path = ROOT / "requirements.txt"
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.M)) if path.exists() else {}


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def device() -> str:
    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    if torch.backends.mps.is_available():
        return "cpu (Apple's GPU is there too: ask for it with --device mps)"
    return "cpu"


def cores() -> int:
    """The cores that this process may use: fewer than the machine's in a container or a batch job."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def room(advice: list[str]) -> Iterator[tuple[str, str]]:
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(ROOT)
    yield "memory", f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB"
    yield "disk", f"{disk.free / 1e9:.1f} GB free"
    if memory.available < MEMORY_NEEDED:
        advice.append(
            f"Free some memory: {memory.available / 1e9:.1f} GB is less than the 1.5 GB that the course needs."
        )
    if disk.free < DISK_NEEDED:
        advice.append(f"Free some disk space: {disk.free / 1e9:.1f} GB is little for checkpoints.")


def chromium() -> str | None:
    """The path of the browser that the browser tests drive."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def toy(advice: list[str]) -> str:
    folder = toy_folder()
    try:
        if is_trained(folder):
            return f"trained, in {folder}"
    except (OSError, ValueError) as error:
        advice.append(f"The toy's checkpoint cannot be read ({error}) Delete {folder}: it is then trained again.")
        return f"damaged, in {folder}"
    return f"not yet trained: about a minute, on first need or with `python -m transformer_lib.toy` (in {folder})"


if __name__ == "__main__":
    sys.exit(main())
