"""Lesson 06: post-norm needs warm-up, pre-norm does not (Xiong et al., 2020)."""

from __future__ import annotations

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments.stories import LLAMA, build, fit, fresh_loss, training_of
from transformer_lib.model import Transformer
from transformer_lib.training import TrainConfig

TITLE = "Post-norm and pre-norm, with and without warm-up, eight blocks deep"
VARIANTS = ("post-norm, warm-up", "post-norm, no warm-up", "pre-norm, warm-up", "pre-norm, no warm-up")
SECONDS = 60


def config(variant: str) -> TransformerConfig:
    return LLAMA.replace(d_model=64, n_layers=8, d_ff=170, norm="layernorm", norm_position=variant.partition("-")[0])


def training(variant: str, steps: int | None, seed: int = 0) -> TrainConfig:
    warmup = 0 if "no warm-up" in variant else (steps or 400) // 4
    return training_of(steps, warmup_steps=warmup, seed=seed, grad_clip=None)


def recipe(variant: str, steps: int | None) -> str:
    return f"{config(variant)} {training(variant, steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = build(Transformer, config(variant), seed)
    try:
        result = fit(model, training(variant, steps, seed))
    except FloatingPointError as error:
        return {"loss": None, "diverged": str(error)}
    return result | {"loss": fresh_loss(model)}
