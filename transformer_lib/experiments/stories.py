"""What the experiments on the story corpus share: the text, equal sizes, one way to train, one way to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transformer_lib import corpus
from transformer_lib.config import TransformerConfig
from transformer_lib.generation import generate
from transformer_lib.losses import masked_mean, token_losses
from transformer_lib.model import Model
from transformer_lib.relatives.counting import count
from transformer_lib.tokenizer import Tokenizer
from transformer_lib.toy import encode_stories, entropy_floor, story_batches
from transformer_lib.training import History, TextBatches, TrainConfig, next_token_loss, train

TEXT_BYTES = 2_000_000
VOCABULARY = 1024
CONTEXT = 160  # tokens: every story fits
N_EVALUATED = 200  # fresh stories on which the loss is measured
# Llama's block in small; every experiment changes only what it asks about.
LLAMA = TransformerConfig(
    vocab_size=VOCABULARY, d_model=128, n_layers=2, n_heads=4, d_ff=340, max_seq_len=256, tie_embeddings=True
)
TRAINING = TrainConfig(steps=400, batch_size=8, learning_rate=3e-3, warmup_steps=40, threads=1, device="cpu")


class Stories(NamedTuple):
    tokenizer: Tokenizer
    batches: TextBatches
    fresh: Tensor  # (N, T) int64, whole stories that no text above holds, padded on the right
    counts: Tensor  # (N, T) bool, True = a token that is to be predicted
    floor: float  # the fresh stories' own information, nats per token


@cache
def stories() -> Stories:
    """The corpus as all experiments see it; made once per process."""
    text = corpus.story_text(TEXT_BYTES)
    tokenizer = Tokenizer.train(text[: TEXT_BYTES // 2], VOCABULARY)
    fresh = corpus.fresh_stories(N_EVALUATED)
    ids = torch.tensor(tokenizer.encode(text))  # (N,)
    batches = story_batches(ids, tokenizer, CONTEXT)
    return Stories(tokenizer, batches, *encode_stories(tokenizer, fresh), entropy_floor(tokenizer, fresh))


def build(kind: type[Model], cfg: TransformerConfig, seed: int) -> Model:
    """A model before its first step; the seed decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(cfg)


def with_parameters(kind: type[Model], cfg: TransformerConfig, total: int, active: bool = False) -> TransformerConfig:
    """The config with the d_ff that brings the model as near to `total` parameters as it can be (active ones if asked).

    Parameters grow linearly with d_ff, so two models on the meta device, which costs no memory, tell which it is.
    """

    def parameters(d_ff: int) -> int:
        with torch.device("meta"):
            counts = count(kind(cfg.replace(d_ff=d_ff)))
        return counts.active_parameters if active else counts.parameters

    slope = parameters(2) - parameters(1)
    return cfg.replace(d_ff=max(1, round((total - parameters(1)) / slope) + 1))


def training_of(steps: int | None, **changes) -> TrainConfig:
    """How every run on the stories is trained; a shorter one warms up for a tenth of it."""
    config = replace(TRAINING, **changes)
    return config if steps is None else replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 10))


def fit(model: Model, config: TrainConfig, loss_fn: Callable = next_token_loss, batches=None) -> dict:
    """Train; returns what every result holds: steps, seconds, tokens, parameters, cache bytes and the loss curve."""
    history = train(model, batches or stories().batches, config, loss_fn=loss_fn, progress=False)
    model.eval()
    counts = count(model)
    return {
        "steps": history.step,
        "seconds": round(history.seconds, 1),
        "tokens": history.tokens,
        "parameters": counts.parameters,
        "active_parameters": counts.active_parameters,
        "cache_bytes_per_token": counts.growing,
        "cache_bytes_fixed": counts.fixed,
        "curve": curve(history),
    }


def curve(history: History, points: int = 40) -> list[tuple[int, float]]:
    """The training loss in at most `points` pieces: (last step of the piece, mean loss in it)."""
    width = max(1, -(-history.step // points))
    pieces = [history.losses[at : at + width] for at in range(0, history.step, width)]
    return [(min((i + 1) * width, history.step), round(sum(p) / len(p), 4)) for i, p in enumerate(pieces)]


@torch.no_grad()
def fresh_loss(model: nn.Module, after: int = 0) -> float:
    """The next-token loss on fresh stories, each read from its beginning; of the tokens behind place `after` only."""
    data, total, n = stories(), 0.0, 0
    for ids, counts in zip(data.fresh.split(50), data.counts.split(50), strict=True):
        keep = counts[:, 1:] & (torch.arange(1, ids.shape[1]) > after)  # (B, T)
        total += float(masked_mean(token_losses(model(ids[:, :-1]), ids[:, 1:]), keep)) * int(keep.sum())
        n += int(keep.sum())
    return total / n


def sample(model: Model, new_tokens: int = 100, seed: int = 0) -> str:
    """The beginning of a story as the model writes it."""
    tokenizer = stories().tokenizer
    start = torch.tensor([tokenizer.encode("\n")])
    ids = generate(model, start, max_new_tokens=new_tokens, temperature=0.8, seed=seed)
    return tokenizer.decode(ids[0].tolist()).strip().split("\n")[0]
