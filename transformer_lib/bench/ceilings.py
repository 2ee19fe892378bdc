"""What this machine can do, measured in the same rounds as what is held against it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from transformer_lib.accounting import count_parameters
from transformer_lib.config import TransformerConfig

READ_BYTES = 256_000_000  # far more than any cache of a laptop holds


def products(cfg: TransformerConfig, rows: int) -> tuple[Callable[[], None], float]:
    """(all products of `rows` vectors with the model's matrices, once; their FLOPs).

    Every matrix of the model has its own product, in the order of a forward pass, with nothing in between.
    """
    tied = [(cfg.vocab_size, cfg.d_model)] if cfg.tie_embeddings else []
    looked_up = ("embedding", "position_embedding")
    counted = count_parameters(cfg).rows
    shapes = [row.shape for row in counted if len(row.shape) == 2 and row.part not in looked_up] + tied
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in shapes]
    inputs = {width: torch.randn(rows, width) for width in {shape[1] for shape in shapes}}

    @torch.no_grad()
    def run() -> None:
        for weight in weights:
            inputs[weight.shape[1]] @ weight.T  # (rows, outputs)

    return run, 2.0 * rows * sum(weight.numel() for weight in weights)


def square_rate(seconds: float = 0.3, width: int = 1024) -> float:
    """FLOP/s of products of two large square matrices: the most that this machine's processor does with float32."""
    a, b, best = torch.randn(width, width), torch.randn(width, width), math.inf
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b  # (width, width)
        best = min(best, time.perf_counter() - start)
    return 2 * width**3 / best


def reading(n_bytes: int = READ_BYTES) -> tuple[Callable[[], None], int]:
    """(one read of a large array, its bytes)."""
    matrix, row = torch.ones(n_bytes // (4 * 4096), 4096), torch.ones(4096)

    def run() -> None:
        matrix @ row  # as decoding reads weights; on the machines at hand a third faster than a sum

    return run, matrix.nbytes
