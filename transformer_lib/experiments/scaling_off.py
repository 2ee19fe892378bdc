"""Lesson 03: what happens to a model that does not divide its scores by √d_k?

The heads are narrow (16) or wide (128). The weights start so that the components of q and k have unit variance, which
is what the argument for the division assumes.
"""

from __future__ import annotations

import math

import torch

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments.stories import LLAMA, build, fit, fresh_loss, stories, training_of
from transformer_lib.model import Model, Transformer
from transformer_lib.recording import record
from transformer_lib.training import next_token_loss

TITLE = "Scores divided by √d_k, or not, with narrow and wide heads"
VARIANTS = ("scaled, d_k 16", "unscaled, d_k 16", "scaled, d_k 128", "unscaled, d_k 128")
SECONDS = 45


def config(variant: str) -> TransformerConfig:
    heads = 8 if variant.endswith("d_k 16") else 1
    return LLAMA.replace(n_heads=heads, scale_scores=not variant.startswith("un"))


def recipe(variant: str, steps: int | None) -> str:
    return f"{config(variant)} {training_of(steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    cfg = config(variant)
    model = build(Transformer, cfg, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.initialize(std=cfg.d_model**-0.5)
    before = look(model)
    result = fit(model, training_of(steps, seed=seed))
    after = look(model)
    measures = {
        f"{name}_{when}": value for when, seen in (("before", before), ("after", after)) for name, value in seen.items()
    }
    return result | measures | {"loss": fresh_loss(model)}


def look(model: Model) -> dict[str, float]:
    """What attention looks like on fresh stories.

    entropy: its mean, as a share of the largest possible. largest_weight: the mean of each row's.
    gradient: the length of the gradient at W_Q and W_K of all layers.
    """
    ids = stories().fresh[:16, :128]
    model.zero_grad()
    with record(model) as seen:
        next_token_loss(model, ids).backward()
    weights = torch.stack([seen[f"blocks.{i}.attention.weights"] for i in range(model.cfg.n_layers)])  # (L, B, H, T, T)
    entropy = torch.special.entr(weights).sum(dim=-1)[..., 1:]  # (L, B, H, T - 1): the first sees only itself
    most = torch.arange(2, weights.shape[-1] + 1).log()  # (T - 1,)
    gradients = [
        weight.grad for name, weight in model.named_parameters() if name.endswith(("w_q.weight", "w_k.weight"))
    ]
    model.zero_grad()
    return {
        "entropy": float((entropy / most).mean()),
        "largest_weight": float(weights.amax(dim=-1)[..., 1:].mean()),
        "gradient": math.sqrt(sum(float(g.pow(2).sum()) for g in gradients)),
    }
