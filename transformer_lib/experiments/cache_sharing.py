"""Lesson 10: smaller caches. Multi-head, grouped-query, multi-query and latent attention, trained alike.

What a variant saves in attention it gets back as MLP width, so that all have nearly the same number of parameters.
"""

from __future__ import annotations

from functools import cache

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments.stories import LLAMA, build, fit, fresh_loss, sample, training_of, with_parameters
from transformer_lib.model import Transformer
from transformer_lib.relatives.counting import count
from transformer_lib.relatives.mla import MLAConfig, MLATransformer

TITLE = "Smaller caches at equal size: MHA, GQA, MQA, MLA"
BASE = LLAMA.replace(n_heads=8)
KV_HEADS = {"MHA": 8, "GQA": 2, "MQA": 1}
VARIANTS = (*KV_HEADS, "MLA")
SECONDS = 50


@cache
def model_of(variant: str) -> tuple[type[Transformer], TransformerConfig]:
    if variant == "MLA":
        kind, cfg = MLATransformer, MLAConfig(**vars(BASE), d_latent=32, d_rope=8)
    else:
        kind, cfg = Transformer, BASE.replace(n_kv_heads=KV_HEADS[variant])
    return kind, with_parameters(kind, cfg, count(Transformer(BASE)).parameters)


def recipe(variant: str, steps: int | None) -> str:
    return f"{model_of(variant)[1]} {training_of(steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = build(*model_of(variant), seed)
    result = fit(model, training_of(steps, seed=seed))
    return result | {"loss": fresh_loss(model), "sample": sample(model, seed=seed)}
