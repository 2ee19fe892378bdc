"""A run small enough for the tests, with dropout: `python tests/training_task.py FOLDER [STEPS] [SLOW] [SEED]`.

Prints the losses as hexadecimal floats: two runs agree only if every bit does.
"""

import sys
import time

import torch
from small import small

from transformer_lib import Transformer
from transformer_lib.training import TextBatches, TrainConfig, train


def text() -> torch.Tensor:
    """(500,) ids with something to learn: every token depends on the one before."""
    return torch.arange(500) ** 2 % 29


def setup(steps: int = 12, seed: int = 3, **changes):
    """(model, batches, config)."""
    torch.manual_seed(seed)
    model = Transformer(small(dropout=0.2))
    options = {"steps": steps, "batch_size": 3, "seed": seed, "save_every": 4, "warmup_steps": 3, "threads": 1}
    return model, TextBatches(text(), context=11), TrainConfig(**(options | changes))


def main(folder: str, steps: int = 12, slow: float = 0.0, seed: int = 3) -> None:
    model, batches, config = setup(steps, seed, save_every=2)

    def on_step(history) -> None:
        print("step", history.step, flush=True)
        time.sleep(slow)

    history = train(model, batches, config, out=folder, progress=False, on_step=on_step)
    print("losses", *(loss.hex() for loss in history.losses), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(kind(x) for kind, x in zip((int, float, int), sys.argv[2:], strict=False)))
