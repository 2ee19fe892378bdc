"""Makes .venv and installs the requirements: `sh .ci/python.sh .ci/environment.py lab` (or `test`).

It runs before anything is installed, so it uses the standard library alone. It may be run at any time: what is
there stays, what is missing or damaged is mended, and a second run ends at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"
LOG = VENV / "pip.log"
REQUIREMENTS = {"lab": ["requirements.txt"], "test": ["requirements.txt", "tests/requirements.txt"]}
FREE_BYTES_NEEDED = 3_000_000_000
EXPECTED = {  # measured on Linux (x86-64, Python 3.11); the wheels of other systems differ by some MB
    "torch": "about 190 MB for torch's CPU build",
    "lab": "about 130 MB for the other packages",
    "test": "about 80 MB for what only the tests need",
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
    (r"No matching distribution found for (\S+)", "there is no {0} for this Python on this system; see README.md"),
    (r"Permission denied: '?([^'\n]+)", "{0} cannot be written; check who owns this folder"),
]


def main(purpose: str) -> int:
    refuse_unserved_systems()
    with only_one_at_a_time():
        if up_to_date(purpose):
            return 0
        for mend in (False, True):
            make_venv(anew=mend)
            install(purpose)
            problem = first_broken_import()
            if not problem:
                break
            if mend:
                fail(f"The packages are installed, but one does not load: {problem}.")
            say(f"An installed package is damaged ({problem}): making .venv anew.")
        STAMP.write_text(json.dumps(state(purpose), indent=1) + "\n")
    return 0


def refuse_unserved_systems() -> None:
    """torch publishes no wheels for these; pip would only say "no matching distribution"."""
    if os.name == "nt":
        fail("On Windows, please use the three pip lines in README.md: this set-up is for Linux and macOS.")
    if sys.maxsize < 2**32:
        fail("PyTorch does not serve 32-bit Pythons: install a 64-bit one.")
    if sys.platform == "darwin":
        if platform.machine() == "x86_64":
            fail("PyTorch no longer serves Intel Macs (on an Apple-silicon Mac, use a native Python, not Rosetta's).")
        if int(platform.mac_ver()[0].split(".")[0] or 14) < 14:
            fail(f"PyTorch needs macOS 14 or newer; this is macOS {platform.mac_ver()[0]}.")
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        fail("PyTorch does not serve musl systems such as Alpine: use a Linux with glibc, for example Debian.")


@contextlib.contextmanager
def only_one_at_a_time():
    """Two `make` in the same folder: the second waits for the first."""
    import fcntl  # not on Windows, which was refused above

    with open(ROOT / ".venv.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up is at work in this folder: waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def state(purpose: str) -> dict:
    """What the environment depends on: where it is, its Python, and the text of the requirement files."""
    files = [*REQUIREMENTS[purpose], "pyproject.toml"]
    hashes = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in files}
    return {"venv": str(VENV), "python": venv_version(), "files": hashes}


def up_to_date(purpose: str) -> bool:
    try:
        stamp = json.loads(STAMP.read_text())
        wanted = state(purpose)
        files = stamp.pop("files").items()
        return wanted.pop("files").items() <= files and stamp == wanted and bool(stamp["python"])
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def venv_version() -> str:
    """The version of .venv's Python, or "" where it does not run, is not supported, or belongs to another folder."""
    code = "import sys; print(sys.prefix); print(sys.version.split()[0])"
    try:
        ran = subprocess.run([VENV_PYTHON, "-c", code], capture_output=True, text=True)
    except OSError:
        return ""
    prefix, version, *_ = [*ran.stdout.splitlines(), "", ""]
    if ran.returncode or os.path.realpath(prefix) != os.path.realpath(VENV):
        return ""
    minor = str(sys.version_info[1]) if os.environ.get("PYTHON") else "1[123]"  # PYTHON asks for its own version
    return version if re.match(rf"3\.{minor}\.", version) else ""


def make_venv(anew: bool) -> None:
    """Keep a .venv that works, and make one otherwise."""
    if not anew and venv_version() and not moved() and has_pip():
        return
    check_disk()
    if importlib.util.find_spec("ensurepip") is None:
        fail(
            f"This Python ({sys.executable}) has no venv module: on Debian or Ubuntu, install it with "
            f"`apt install python3-venv` (or python3.{sys.version_info[1]}-venv), then run the same command again."
        )
    if VENV.is_symlink() or VENV.is_file():
        fail(f"{VENV} is a link or a file, not a working environment: remove it, then run the same command again.")
    if VENV.exists():
        say("The .venv that is here does not work, was moved or has another Python: making it anew.")
        shutil.rmtree(VENV)
    options = ["--system-site-packages"] if this_python_has_torch() else []
    if options:
        say(f"Using the torch that {sys.executable} already has.")
    say(f"Making .venv with Python {platform.python_version()}.")
    # Not sys.executable: that may lie in the very .venv that was just removed.
    made = subprocess.run([sys._base_executable, "-m", "venv", *options, VENV], capture_output=True, text=True)
    if made.returncode:
        fail(f"Python could not make .venv: {last_line(made.stderr or made.stdout)}")


def has_pip() -> bool:
    return subprocess.run([VENV_PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0


def moved() -> bool:
    """True where the checkout was moved or copied: .venv's scripts and the editable install name the old folder."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return json.loads(STAMP.read_text())["venv"] != str(VENV)
    return False


def this_python_has_torch() -> bool:
    """True where the Python that runs this (conda's, for example) has the pinned torch, in whatever build."""
    if sys.prefix != sys.base_prefix:  # an environment of its own: a new one made from it would not see its packages
        return False
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch").split("+")[0] == pinned_torch()
    return False


def pinned_torch() -> str:
    return re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.M).group(1)


def install(purpose: str) -> None:
    found = "import importlib.metadata as m; print(m.version('torch'))"
    torch = subprocess.run([VENV_PYTHON, "-c", found], capture_output=True, text=True).stdout.strip()
    announce(purpose, torch)
    if not torch:
        check_disk()
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


def announce(purpose: str, torch: str) -> None:
    parts = [EXPECTED["lab"]] + ([EXPECTED["test"]] if purpose == "test" else [])
    if torch.split("+")[0] == pinned_torch():
        say(f"Keeping torch {torch}, which is here already.")
    else:
        parts.insert(0, EXPECTED["torch"])
    say("Installing " + " and ".join(REQUIREMENTS[purpose]) + ". To download, unless it is here already:")
    say("   " + ", ".join(parts) + ".")
    if sys.platform == "linux" and EXPECTED["torch"] in parts:
        say("   On Linux, pip's default torch is the build for NVIDIA GPUs: several GB in place of the 190 MB.")
        say("   For the CPU build, stop here (Ctrl-C), set PIP_EXTRA_INDEX_URL to the index for CPU builds that")
        say("   PyTorch's install page gives, and run the same command again.")


def cause(log: str) -> str:
    for pattern, meaning in CAUSES:
        match = re.search(pattern, log)
        if match:
            return meaning.format(*match.groups(), tmp=os.environ.get("TMPDIR", "/tmp"))
    return last_line("\n".join(line for line in log.splitlines() if "ERROR" in line)) or "it gave no reason"


def first_broken_import() -> str:
    """The message of the first direct requirement that cannot be imported; "" if all can."""
    code = "import torch, numpy, matplotlib, jupyterlab, ipywidgets, sentencepiece, tokenizers, transformer_lib"
    ran = subprocess.run([VENV_PYTHON, "-c", code], capture_output=True, text=True, cwd=VENV)
    return last_line(ran.stderr) or f"Python ended with {ran.returncode}" if ran.returncode else ""


def check_disk() -> None:
    free = shutil.disk_usage(ROOT).free
    if free < FREE_BYTES_NEEDED:
        fail(
            f"Too little disk space: {ROOT} has {free / 1e9:.1f} GB free, and the set-up needs "
            f"{FREE_BYTES_NEEDED / 1e9:.0f} GB (several more for a torch with CUDA)."
        )


def size(number: str, unit: str) -> float:
    """pip's "191.8 MB" in bytes."""
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}.get(unit, 0)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def say(text: str) -> None:
    print(text, flush=True)


def fail(text: str) -> None:
    sys.exit(text)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in REQUIREMENTS:
        fail("Usage: sh .ci/python.sh .ci/environment.py lab|test")
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        fail("\nInterrupted. Nothing is lost: run the same command again.")
    except OSError as error:
        fail(f"The set-up cannot go on: {error}.")
