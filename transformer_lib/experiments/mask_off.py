"""Lesson 05: a language model that may see the token it has to predict.

Trained without the causal mask, its loss falls far below the stories' own entropy, which no honest model can. Asked as
it must be asked when it writes, without the future, it knows little.
"""

from __future__ import annotations

from transformer_lib.experiments.stories import LLAMA, build, fit, fresh_loss, sample, stories, training_of
from transformer_lib.model import Transformer

TITLE = "The causal mask left off"
VARIANTS = ("causal", "mask left off")
SECONDS = 40


def config(variant: str):
    return LLAMA.replace(causal=variant == "causal")


def recipe(variant: str, steps: int | None) -> str:
    return f"{config(variant)} {training_of(steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = build(Transformer, config(variant), seed)
    result = fit(model, training_of(steps, seed=seed))
    honest = build(Transformer, config("causal"), seed).eval()  # the same weights behind the mask: no future to look at
    honest.load_state_dict(model.state_dict())
    return result | {
        "loss_as_trained": fresh_loss(model),
        "loss": fresh_loss(honest),
        "floor": stories().floor,
        "sample": sample(honest, seed=seed),
    }
