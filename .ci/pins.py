"""Writes the exact versions of this environment into the requirement files: `.venv/bin/python .ci/pins.py`.

The direct requirements stand above the mark and are edited by hand; below it comes everything that these bring.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MARK = "# What these bring with them (written by .ci/pins.py):"


def direct(text: str) -> list[str]:
    return re.findall(r"^([A-Za-z][\w.-]*)==", text.split(MARK)[0], re.M)


def closure(names: list[str]) -> set[str]:
    """The names, and what they need on this machine, and what that needs …"""
    done, todo = set(), [(name, "") for name in names]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in done:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:  # for another system
            continue
        done.add((name, extra))
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(need.name), e) for e in ("", *need.extras)]
    return {canonicalize_name(name) for name, _ in done}


def version(name: str) -> str:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed here: install tests/bench.txt too, as `make bench` does.")
    for python in ("3.11.0", "3.12.0", "3.13.0"):  # Debian 12 has 3.11.2: the first release of each counts
        if not SpecifierSet(found.metadata["Requires-Python"] or "").contains(python):
            sys.exit(f"{name} {found.version} does not serve Python {python}: install an earlier version first.")
    return found.version.split("+")[0]  # any build of torch


def main() -> None:
    known: set[str] = set()
    for path in (ROOT / "requirements.txt", ROOT / "tests" / "requirements.txt", ROOT / "tests" / "bench.txt"):
        top = path.read_text().split(MARK)[0].rstrip()
        names = direct(top)
        top = re.sub(r"^([A-Za-z][\w.-]*)==\S+", lambda m: f"{m[1]}=={version(m[1])}", top, flags=re.M)
        # nvidia-… and triton come with torch's CUDA builds alone; torch itself says which it needs.
        brought = sorted(n for n in closure(names) - known - set(map(canonicalize_name, names)) if pinned_here(n))
        path.write_text("\n".join([top, "", MARK, *(f"{n}=={version(n)}" for n in brought)]) + "\n")
        known |= closure(names)


def pinned_here(name: str) -> bool:
    return not re.match(r"nvidia-|cuda-|triton$|pip$|setuptools$", name)


if __name__ == "__main__":
    main()
