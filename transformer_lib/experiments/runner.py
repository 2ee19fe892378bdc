"""Make the runs that are missing, a few at a time, and store each when it is done."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from tqdm import tqdm

from transformer_lib.experiments import results
from transformer_lib.values import shown

NAMES = ("translation_trained", "scaling_off", "mask_off", "warmup", "cache_sharing", "relatives_trained", "ladder")


class Job(NamedTuple):
    experiment: str
    variant: str
    seed: int


def experiment_named(name: str) -> ModuleType:
    """The module of one experiment. Raises ValueError, listing them all, for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"there is no experiment {shown(name)}; there are {', '.join(NAMES)}.")
    return importlib.import_module(f"transformer_lib.experiments.{name}")


def plan(names=NAMES, seeds: int = 3) -> list[Job]:
    """All runs, seed by seed, so that an early stop leaves every variant with the same number of them."""
    return [
        Job(name, variant, seed)
        for name in names
        for seed in range(seeds)
        for variant in experiment_named(name).VARIANTS
    ]


def missing(names, seeds: int, steps: int | None, path) -> list[Job]:
    """The runs of `plan` that are not in the file yet, or are there with another recipe."""
    found, jobs = results.load(path), plan(names, seeds)
    recipes = {job[:2]: recipe_of(job, steps) for job in jobs if job.seed == 0}  # which no seed changes
    return [job for job in jobs if not results.is_done(found, *job, recipes[job[:2]])]


def run_all(names=NAMES, seeds: int = 3, steps: int | None = None, workers: int | None = None, path=None) -> int:
    """Make every run of `plan` that is not in the file yet; returns how many were made.

    steps: shorter runs, to try it out. workers: processes at a time, one thread each (None: one per two CPU cores, at
    least two where there are two). Ctrl-C stops after what is stored; the same command goes on from there.
    """
    path = results.FILE if path is None else Path(path)
    jobs = missing(names, seeds, steps, path)
    if not jobs:
        return 0
    workers = workers or min(len(jobs), max(os.cpu_count() or 1, 1))
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(make, job, steps): job for job in jobs}
        failed: BaseException | None = None
        try:
            with tqdm(total=len(jobs), unit="run", file=sys.stderr, dynamic_ncols=True) as bar:
                for future in as_completed(futures):
                    if future.cancelled():
                        continue
                    if future.exception() is not None:  # those under way are still finished and stored
                        failed = failed or future.exception()
                        for other in futures:
                            other.cancel()
                        continue
                    results.store(path, *futures[future], future.result())
                    bar.set_postfix_str("{}/{}, seed {}".format(*futures[future]))
                    bar.update(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failed is not None:
        raise failed
    return len(jobs)


def make(job: Job, steps: int | None) -> dict:
    """One run, with what is needed to judge and repeat it."""
    result = experiment_named(job.experiment).run(job.variant, job.seed, steps)
    about = {"recipe": recipe_of(job, steps), "seed": job.seed}
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return result | about | {"versions": versions, "machine": platform.machine(), "threads": torch.get_num_threads()}


def recipe_of(job: Job, steps: int | None) -> str:
    return experiment_named(job.experiment).recipe(job.variant, steps)


def expected_seconds(names=NAMES, seeds: int = 3) -> float:
    """About how long `plan` takes on one core."""
    return sum(experiment_named(job.experiment).SECONDS for job in plan(names, seeds))
