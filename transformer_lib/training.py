"""One training loop for everything that the course trains.

    history = train(model, TextBatches(ids, context=128), TrainConfig(steps=1000), out="runs/mine")

A step is decided by (weights, optimizer, seed, step) and by nothing else: the batch is a function of the step, and
torch's random numbers are seeded anew at every step. So a run that was interrupted and resumed ends with the very
losses of one that was not, bit for bit on the CPU with the same number of threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from transformer_lib.checks import check_batch, check_flags, check_functions, check_loss, check_trainable
from transformer_lib.devices import choose_threads, pick_device, using_threads
from transformer_lib.distributed import ALONE, Team
from transformer_lib.losses import next_token_loss
from transformer_lib.runs import Run, interruptible, progress_bar
from transformer_lib.train_config import TrainConfig
from transformer_lib.values import shown

MOST_TOKENS = 2**28  # of a batch: their ids alone take 2 GiB


@dataclass
class History:
    """What a run has seen: one loss per step, nats per token on the batch before its update."""

    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)  # (steps done, evaluate(model))
    learning_rates: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    threads: int = 1

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class TextBatches:
    """Batches of windows of a text: `TextBatches(ids, context)(step, config)` -> (B, context + 1) int64.

    ids: (N,), the text's tokens. starts: where a window may begin, (S,); None: anywhere. Each window is drawn
    independently.
    """

    def __init__(self, ids: Tensor | list[int], context: int, starts: Tensor | None = None):
        self.ids = torch.as_tensor(ids, dtype=torch.int64)  # (N,)
        if len(self.ids) < context + 1:
            raise ValueError(
                f"the text has {len(self.ids)} tokens, too few for one window of context + 1 = {context + 1}; "
                f"give more text, or a shorter context."
            )
        last = len(self.ids) - context - 1
        self.starts = torch.arange(last + 1) if starts is None else starts[starts <= last]  # (S,)
        self.window = torch.arange(context + 1)  # (T + 1,)

    def __call__(self, step: int, config: TrainConfig) -> Tensor:
        if config.batch_size * len(self.window) > MOST_TOKENS:
            raise ValueError(f"batch_size={config.batch_size:,} is too large: at most {MOST_TOKENS:,} tokens fit.")
        chosen = self.starts[torch.randint(len(self.starts), (config.batch_size,))]  # (B,)
        return self.ids[chosen[:, None] + self.window]  # (B, T + 1)


def train(
    model: nn.Module,
    batches: Callable,
    config: TrainConfig,
    *,
    loss_fn: Callable = next_token_loss,
    evaluate: Callable[[nn.Module], float] | None = None,
    out=None,
    resume: bool = True,
    tokenizer=None,
    on_step: Callable[[History], None] | None = None,
    progress: bool = True,
) -> History:
    """Train `model` in place; returns the `History`.

    batches(step, config) -> a batch: a tensor, or a tuple of tensors. It must give the same batch for the same step; it
    may draw from torch's global random numbers, which are seeded with (config.seed, step) just before.
    loss_fn(model, batch) -> a scalar. evaluate(model) -> a number, called in eval mode, every config.eval_every steps.
    out: a folder for checkpoints. With resume=True, a run that is there goes on, and a finished one is only loaded; the
    folder of another run is refused. tokenizer: is stored with the weights.
    on_step(history): called after every step.
    Started by torchrun, the processes share every batch; see `distributed`.

    Ctrl-C lets the step end and writes a checkpoint first. A loss that is not finite raises FloatingPointError.
    """
    check_trainable(model)
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig; got {shown(config)}.")
    check_functions(batches=batches, loss_fn=loss_fn)
    check_functions(optional=True, evaluate=evaluate, on_step=on_step)
    check_flags(resume=resume, progress=progress)
    team = Team.from_environment()
    device = team.device(pick_device(config.device))
    model.to(device)
    optimizer = make_optimizer(model, config)
    run = Run(model, optimizer, config, History(), out, tokenizer, {"loss": name_of(loss_fn)})
    with run.locked(team.leads), team.joined(device), torch.random.fork_rng(devices=[]):
        seed_step(config, 0)
        run.restore(resume, first_batch=check_batch(batches(0, config)))
        history = run.history
        if history.step == config.steps:
            return history
        history.threads = config.threads or (history.threads if history.step else choose_threads(run.size))
        shared, progress = team.wrap(model), progress and team.leads
        with using_threads(history.threads), interruptible() as interrupted:
            run.announce(device, progress)  # before the bar, which would share its line
            with progress_bar(history, config.steps, progress) as show:
                model.train()
                while history.step < config.steps:
                    one_step(shared, optimizer, batches, loss_fn, config, history, device, team)
                    due = config.eval_every and history.step % config.eval_every == 0
                    if evaluate is not None and (due or history.step == config.steps):
                        history.evaluations.append((history.step, evaluate_now(model, evaluate)))
                    stop = team.any(interrupted(), device)
                    if team.leads and (stop or history.step % config.save_every == 0 or history.step == config.steps):
                        run.save()
                    show(history)
                    if on_step is not None:
                        on_step(history)
                    if stop and history.step < config.steps:
                        raise KeyboardInterrupt(run.how_to_resume())
    return history


def one_step(model, optimizer, batches, loss_fn, config: TrainConfig, history: History, device, team=ALONE) -> None:
    """Batch, loss, gradient, update; noted in `history`."""
    start, step = time.perf_counter(), history.step
    seed_step(config, step)
    batch = to_device(team.own_rows(check_batch(batches(step, config))), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        loss = check_loss(loss_fn(model, batch))
    value = team.mean(loss)
    require_finite(value, "loss", step, config)
    loss.backward()
    length = nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or math.inf).item()
    require_finite(length, "gradient", step, config)
    rate = config.learning_rate_at(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    history.losses.append(value)
    history.learning_rates.append(rate)
    history.tokens += team.size * (batch if isinstance(batch, Tensor) else batch[0]).numel()
    history.seconds += time.perf_counter() - start


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019). Biases and norms do not decay: zero is not their neutral value."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def evaluate_now(model: nn.Module, evaluate: Callable[[nn.Module], float]) -> float:
    model.eval()
    with torch.no_grad():
        value = evaluate(model)
    model.train()
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise TypeError(f"evaluate must return a number; got {shown(value)}.") from None


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable, loss_fn: Callable = next_token_loss) -> float:
    """The loss over several batches, each weighted by its number of rows; in eval mode."""
    was_training = model.training
    model.eval()
    total = rows = 0.0
    for batch in batches:
        n = len(batch if isinstance(batch, Tensor) else batch[0])
        total, rows = total + n * float(loss_fn(model, batch)), rows + n
    model.train(was_training)
    return total / rows


def seed_step(config: TrainConfig, step: int) -> None:
    torch.manual_seed((config.seed * 1_000_003 + step) % 2**32)


def require_finite(value: float, what: str, step: int, config: TrainConfig) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The {what} is {value} at step {step + 1}, so training stops; the last checkpoint is kept. "
            f"Try a learning rate below {config.learning_rate:g}, a longer warm-up or grad_clip."
        )


def to_device(batch, device):
    return batch.to(device) if isinstance(batch, Tensor) else tuple(part.to(device) for part in batch)


def name_of(function) -> str:
    return getattr(function, "__name__", type(function).__name__)
