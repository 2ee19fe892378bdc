"""Lesson 06: post-norm needs warm-up, pre-norm does not (Xiong et al., 2020).

The block of 2017, six deep, from Xavier's start, at a rate that pre-norm bears from the first step. After the warm-up
the rate stays where it is, so that the runs differ in nothing else. The last variant starts from GPT-2's small weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments.stories import LLAMA, TRAINING, build, fit, fresh_loss
from transformer_lib.gradients import xavier
from transformer_lib.model import Model, Transformer
from transformer_lib.training import TrainConfig

TITLE = "Post-norm and pre-norm, with and without warm-up, six blocks deep"
SMALL_START = "post-norm, no warm-up, GPT-2's start"
VARIANTS = (
    "post-norm, warm-up", "post-norm, no warm-up", "pre-norm, warm-up", "pre-norm, no warm-up", SMALL_START,
)  # fmt: skip
SECONDS = 60
WARMUP = 100  # steps


def config(variant: str) -> TransformerConfig:
    position = variant.partition("-")[0]
    return LLAMA.replace(
        d_model=64, n_layers=6, n_heads=2, d_ff=256, activation="relu", norm="layernorm", norm_position=position
    )


def training(variant: str, steps: int | None, seed: int = 0) -> TrainConfig:
    warmup = 0 if "no warm-up" in variant else WARMUP
    return replace(
        TRAINING, steps=steps or TRAINING.steps, learning_rate=2e-3, schedule="constant", warmup_steps=warmup,
        weight_decay=0.0, grad_clip=None, seed=seed,
    )  # fmt: skip


def start(variant: str, seed: int) -> Model:
    """The model before its first step."""
    model = build(Transformer, config(variant), seed)
    if variant != SMALL_START:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            xavier(model)
    return model


def recipe(variant: str, steps: int | None) -> str:
    return f"{config(variant)} {training(variant, steps)} {'small' if variant == SMALL_START else 'xavier'}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = start(variant, seed)
    try:
        result = fit(model, training(variant, steps, seed))
    except FloatingPointError as error:
        return {"loss": None, "diverged": str(error)}
    return result | {"loss": fresh_loss(model)}
