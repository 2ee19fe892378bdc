"""What the experiments found: figures/experiments.json, one entry per run, whole at any moment."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[2] / "figures" / "experiments.json"


class Spread(NamedTuple):
    """A number over several seeds. low, high: the smallest and the largest; n: how many seeds."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f}–{self.high:.3f})"


def load(path: Path | None = None) -> dict:
    """{experiment: {variant: {seed: result}}}; empty if nothing was run yet. Raises ValueError for a damaged file."""
    path = FILE if path is None else Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        runs = [run for variants in found.values() for seeds in variants.values() for run in seeds.values()]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, AttributeError):  # AttributeError: JSON of another shape
        runs = [None]
    if not all(isinstance(run, dict) for run in runs):
        raise ValueError(f"{path} is no JSON file of results; delete it and run `make experiments` again.")
    return found


def store(path: Path, experiment: str, variant: str, seed: int, result: dict) -> None:
    """Add one run to the file: written beside it and then renamed, so that an interruption leaves the former file."""
    everything = load(path)
    everything.setdefault(experiment, {}).setdefault(variant, {})[str(seed)] = result
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def is_done(found: dict, experiment: str, variant: str, seed: int, recipe: str) -> bool:
    """Whether this very run is among those that `load` found; one with another recipe does not count."""
    return found.get(experiment, {}).get(variant, {}).get(str(seed), {}).get("recipe") == recipe


def spread(experiment: str, variant: str, key: str, path: Path | None = None) -> Spread:
    """A number of all runs of one variant. Raises KeyError, saying what to run, where there is none."""
    runs = load(path).get(experiment, {}).get(variant, {})
    values = [run[key] for run in runs.values() if run.get(key) is not None]
    if not values:
        raise KeyError(f"there is no {key!r} of {experiment}/{variant}: run `make experiments`.")
    return Spread(statistics.fmean(values), min(values), max(values), len(values))


def table(experiment: str, path: Path | None = None) -> list[dict]:
    """One row per variant, in the order in which they were registered: its name, and every number with its spread."""
    from transformer_lib.experiments.runner import experiment_named

    runs, rows = load(path).get(experiment, {}), []
    for variant in experiment_named(experiment).VARIANTS:
        results = list(runs.get(variant, {}).values())
        if results:
            numbers = [key for key, value in results[0].items() if isinstance(value, (int, float))]
            rows.append({"variant": variant} | {key: spread(experiment, variant, key, path) for key in numbers})
    return rows
