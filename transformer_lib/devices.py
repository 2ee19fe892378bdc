"""Where a model runs, and with how many threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from transformer_lib.values import shown

SMALL_MODEL = 500_000  # parameters


def choose_threads(n_parameters: int) -> int:
    """How many threads to train with: what OMP_NUM_THREADS says, else 1 for a small model, else one per core.

    A step of a small model is many tiny operations. Width 64, 2 layers, batch 8: two threads are 1.5 times as fast as
    one on a quiet machine, but wait for each other on a busy one, and may then fall to a tenth. Width 128, 4 layers,
    batch 32: 1.7 times on a quiet machine, and 0.98 times beside one busy process, thanks to GOMP_SPINCOUNT=1000, which
    importing transformer_lib sets (0.30 times without it); `bench threads` measures it.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()  # which torch has set from it
    if n_parameters < SMALL_MODEL:
        return 1
    return available_cores()


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def using_threads(n: int) -> Iterator[None]:
    """Compute with `n` threads inside the block. Sums are added up in another order with another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of a few runs: other programs can only make it longer."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def memory_bandwidth(n_bytes: int = 192 * 2**20) -> float:
    """Bytes per second at which one thread reads numbers that no cache of the processor holds; the best of two ways."""
    large = torch.ones(n_bytes // 4)
    matrix, vector = large.view(-1, 4096), torch.ones(4096)
    with using_threads(1):
        return large.nbytes / min(seconds(large.sum, 5), seconds(lambda: matrix @ vector, 5))


def pick_device(name: str | None = None) -> torch.device:
    """The device to use: the one named, or a CUDA GPU where there is one, or the CPU.

    An explicit choice is honoured or refused with a sentence, never replaced. Apple's GPU ("mps") is used only when
    asked for, and after it has computed the same logits as the CPU on a small model.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"{shown(name)} is not a device; use 'cpu', 'cuda', 'cuda:0' … or 'mps'.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(f"device {shown(name)} was asked for, but torch sees {count} CUDA GPUs; use 'cpu'.")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device 'mps' was asked for, but this machine or this torch has no Apple GPU; use 'cpu'.")
        check_against_cpu(device)
    elif device.type != "cpu":
        raise ValueError(f"device {shown(name)} is not supported; use 'cpu', 'cuda' or 'mps'.")
    return device


def check_against_cpu(device: torch.device, tolerance: float = 1e-3) -> None:
    """Raise RuntimeError unless a small model gives the same logits and gradients on `device` as on the CPU."""
    from transformer_lib.config import TransformerConfig
    from transformer_lib.model import Transformer

    cfg = TransformerConfig(vocab_size=50, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=32)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is not missing later
        model, ids = Transformer(cfg), torch.randint(0, 50, (3, 17))
        model.initialize(std=0.2)
    results = []
    for place in (torch.device("cpu"), device):
        model.to(place).zero_grad()
        logits = model(ids.to(place))  # (3, 17, 50)
        logits.logsumexp(-1).mean().backward()
        results.append((logits.detach().cpu(), model.embedding.weight.grad.cpu()))
    worst = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
    if not worst <= tolerance:
        raise RuntimeError(f"{device} computes other numbers than the CPU (difference {worst:.1e}); use the CPU.")
