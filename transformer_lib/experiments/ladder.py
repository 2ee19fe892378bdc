"""Lesson 11: from the 2017 model to Llama's, in every combination of the four substitutions.

rope: sinusoids -> rotary positions. norm: post-norm LayerNorm -> pre-norm RMSNorm. swiglu: ReLU -> SwiGLU. decoder:
encoder and decoder -> decoder only. All have nearly the same number of parameters (d_ff is chosen so), the same data
and steps, no biases, and one table for embedding and unembedding.

An encoder-decoder needs something to encode: it reads the first half of a window and writes the second. A decoder
reads and writes all of it. The loss that all are compared by is that of the second half of fresh stories, given the
first; the decoder-only ones have learned from twice as many predictions in the same number of steps, which is the
point of them.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.experiments.stories import CONTEXT, LLAMA, build, fit, fresh_loss, training_of, with_parameters
from transformer_lib.losses import cross_entropy
from transformer_lib.model import EncoderDecoder, Model, Transformer
from transformer_lib.relatives.counting import count
from transformer_lib.training import next_token_loss

TITLE = "The four substitutions since 2017, in all combinations"
SWITCHES = {
    "rope": {"positions": "rope", "embedding_scale": False},
    "norm": {"norm": "rmsnorm", "norm_position": "pre"},
    "swiglu": {"activation": "swiglu"},
    "decoder": {"n_encoder_layers": 0, "n_layers": 2},
}
BASE = LLAMA.replace(
    positions="sinusoidal", embedding_scale=True, norm="layernorm", norm_position="post", activation="relu",
    n_layers=1, n_encoder_layers=1,
)  # fmt: skip
SPLIT = CONTEXT // 2  # tokens that an encoder reads


def name_of(switches) -> str:
    return " + ".join(switches) or "2017"


# First those that the story needs: none, each alone, all; then the rest.
VARIANTS = tuple(name_of(chosen) for n in (0, 1, 4, 2, 3) for chosen in combinations(SWITCHES, n))
SECONDS = 45


@cache
def model_of(variant: str) -> tuple[type[Model], TransformerConfig]:
    cfg = BASE
    for name in SWITCHES:
        if name in variant.split(" + "):
            cfg = cfg.replace(**SWITCHES[name])
    kind = EncoderDecoder if cfg.n_encoder_layers else Transformer
    return kind, with_parameters(kind, cfg, count(Transformer(LLAMA)).parameters)


def recipe(variant: str, steps: int | None) -> str:
    return f"{model_of(variant)[1]} {training_of(steps)}"


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = build(*model_of(variant), seed)
    two = isinstance(model, EncoderDecoder)
    result = fit(model, training_of(steps, seed=seed), second_half_loss if two else next_token_loss)
    asked = HalfAndHalf(model) if two else model
    return result | {"loss": fresh_loss(asked, after=SPLIT)} | ({} if two else {"loss_whole": fresh_loss(model)})


def pairs(switch: str) -> list[tuple[str, str]]:
    """The eight pairs of rungs that differ in this switch alone, (without it, with it)."""
    others = [name for name in SWITCHES if name != switch]
    rests = [rest for n in range(len(SWITCHES)) for rest in combinations(others, n)]
    return [(name_of(rest), name_of(name for name in SWITCHES if name in (*rest, switch))) for rest in rests]


def second_half_loss(model: EncoderDecoder, ids: Tensor) -> Tensor:
    """The loss of the tokens behind place SPLIT, given those up to it. ids: (B, T + 1)."""
    logits = model(ids[:, : SPLIT + 1], ids[:, SPLIT:-1])  # (B, T - SPLIT, V)
    return cross_entropy(logits, ids[:, SPLIT + 1 :])


class HalfAndHalf(nn.Module):
    """An encoder-decoder that is asked like a decoder: ids (B, T) -> logits (B, T, V), of the second half alone."""

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.model(ids[:, : SPLIT + 1], ids[:, SPLIT:])  # (B, T - SPLIT, V)
        before = logits.new_zeros(len(ids), SPLIT, logits.shape[-1])  # (B, SPLIT, V): says nothing
        return torch.cat([before, logits], dim=1)  # (B, T, V)
