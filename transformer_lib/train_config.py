"""How to train: the settings of a run, checked before anything is computed, and its schedule of learning rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from transformer_lib.config import LARGEST
from transformer_lib.values import is_number, shown

CHOICES = {"schedule": ("cosine", "inverse_sqrt", "constant"), "precision": ("float32", "bf16")}
MOST_THREADS = 256  # asked for many more, the system may end the process instead of answering
MOST = {"learning_rate": 1000, "weight_decay": 1000, "final_fraction": 1, "grad_clip": LARGEST}  # more may overflow


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train.

    steps: updates of the weights.                  batch_size: rows of a batch, B.
    learning_rate: its largest value, reached after warmup_steps.
    schedule: "cosine" (down to final_fraction of it at the last step), "inverse_sqrt" (Vaswani et al., 2017, section
    5.3) or "constant".
    weight_decay: AdamW's, on matrices alone.       betas: AdamW's, for the mean and the mean square of the gradient.
    grad_clip: longest gradient, as a vector of all weights; a longer one is shortened to it. None: never.
    seed: of the batches and of dropout (not of the weights that the model starts with).
    eval_every: steps between two evaluations; None: at the end alone.
    save_every: steps between two checkpoints.
    threads: of the CPU; None: `choose_threads`.    device: None: `pick_device()`.
    precision: "float32", or "bf16": products in bfloat16 (half the bytes, 8 bits of fraction), while weights, sums over
    a vector and the loss stay in float32 (torch's autocast). Faster for large models and on GPUs.

    Raises ValueError, with the values, for what cannot be.
    """

    steps: int
    batch_size: int = 16
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warmup_steps: int = 50
    final_fraction: float = 0.0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float | None = 1.0
    seed: int = 0
    eval_every: int | None = None
    save_every: int = 200
    threads: int | None = None
    device: str | None = None
    precision: str = field(default="float32", repr=False)  # the toy's folder is named after the repr

    def __post_init__(self):
        for name in ("steps", "batch_size", "eval_every", "save_every", "threads"):
            value = getattr(self, name)
            if value is None and name in ("eval_every", "threads"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1; got {shown(value)}.")
            most = MOST_THREADS if name == "threads" else LARGEST
            if value > most:
                raise ValueError(f"{name} must be at most {most:,}; got {shown(value)}.")
        for name in ("seed", "warmup_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
                raise ValueError(f"{name} must be a whole number of at least 0, and below 2^63; got {shown(value)}.")
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is None and name == "grad_clip":
                continue
            if not is_number(value, (int, float)) or not 0 <= value <= most:
                raise ValueError(f"{name} must be a finite number from 0 to {most:,}; got {shown(value)}.")
        if self.learning_rate == 0 or self.grad_clip == 0:
            raise ValueError("learning_rate and grad_clip must be above 0; with 0 nothing would be learnt.")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}.")
        if not isinstance(self.device, str | torch.device | None):
            raise ValueError(f"device must be a name such as 'cpu' or 'cuda:0', or None; got {shown(self.device)}.")
        pair = isinstance(self.betas, (tuple, list)) and len(self.betas) == 2
        if not pair or not all(is_number(beta, (int, float)) and 0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers of at least 0 and below 1; got {shown(self.betas)}.")
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))  # as AdamW wants them

    def learning_rate_at(self, step: int) -> float:
        """The rate of step 0, 1, 2 …: a straight rise over warmup_steps, then the schedule."""
        done, warmup = step + 1, max(self.warmup_steps, 1)
        if done < warmup:
            return self.learning_rate * done / warmup
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "inverse_sqrt":
            return self.learning_rate * math.sqrt(warmup / done)
        progress = (done - warmup) / max(self.steps - warmup, 1)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)
