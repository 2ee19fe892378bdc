"""Makes .venv and installs the requirements: `sh .ci/python.sh .ci/environment.py lab` (or `test`, `bench`).

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

from packages import (
    REQUIREMENTS,
    ROOT,
    VENV,
    VENV_PYTHON,
    check_disk,
    fail,
    install,
    install_model,
    last_line,
    pinned_torch,
    say,
)

STAMP = VENV / "installed.json"


def main(purpose: str) -> int:
    refuse_unserved_systems()
    with only_one_at_a_time():
        if not up_to_date(purpose):
            set_up(purpose)
        install_model()
    return 0


def set_up(purpose: str) -> None:
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


def first_broken_import() -> str:
    """The message of the first direct requirement that cannot be imported; "" if all can."""
    code = "import torch, numpy, matplotlib, jupyterlab, ipywidgets, sentencepiece, tokenizers, transformer_lib"
    ran = subprocess.run([VENV_PYTHON, "-c", code], capture_output=True, text=True, cwd=VENV)
    return last_line(ran.stderr) or f"Python ended with {ran.returncode}" if ran.returncode else ""


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in REQUIREMENTS:
        fail("Usage: sh .ci/python.sh .ci/environment.py lab|test|bench")
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        fail("\nInterrupted. Nothing is lost: run the same command again.")
    except OSError as error:
        fail(f"The set-up cannot go on: {error}.")
