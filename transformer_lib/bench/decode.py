"""Decoding one sequence: tokens per second beside transformers' generate, and the time to read all weights once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from transformer_lib.accounting import count_parameters, kv_cache_bytes
from transformer_lib.bench.ceilings import reading
from transformer_lib.bench.models import SIZES, made, ours, transformers_llama
from transformer_lib.bench.report import Row, rate_row
from transformer_lib.bench.timing import in_turns
from transformer_lib.decoding import DecodeCopy
from transformer_lib.generation import generate

PROMPT, NEW = 16, 256
BARS = {"S": 2.0, "M": 2.0, "L": 1.75}
FLOOR_BAR = 1.5  # on L
CONTEXTS = (128, 512, 1024, 2048, 4095)
CACHES = {"dynamic": {}, "static": {"cache_implementation": "static", "disable_compile": True}}


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    for name in ("S",) if options.quick else ("S", "M", "L"):
        yield from compare(name, options)
    yield from by_context("S" if options.quick else "M", options)


def compare(name: str, options) -> Iterator[Row]:
    cfg, case = SIZES[name].config, f"{name}, {NEW} new tokens"
    model, ids = ours(cfg).eval(), torch.randint(0, cfg.vocab_size, (1, PROMPT))
    runs = {"this library": lambda: generate(model, ids, max_new_tokens=NEW)}
    peer, missing = made(transformers_llama, cfg)
    if peer is not None:
        runs |= {f"transformers, {cache} cache": peer_run(peer, ids, how) for cache, how in CACHES.items()}
    runs["reading the weights"], n_bytes = reading()
    rounds = min(options.rounds, 3) if name == "L" else options.rounds
    times = in_turns(runs, rounds, options.clock, warm=("reading the weights",))
    mine, read = times.pop("this library"), times.pop("reading the weights")
    where = {"section": "decode", "case": case}
    copied = f"with a copy of the weights of {DecodeCopy(model, PROMPT).nbytes / 1e6:,.0f} MB"
    yield rate_row(mine, NEW, "tokens/s", **where, what="this library", note=copied)
    for cache, time in times.items():
        yield rate_row(time, NEW, "tokens/s", **where, what=cache, ratio=time.over(mine), bar=BARS[name])
    if missing:
        yield Row(**where, what="transformers", note=missing)
    floor = 4 * count_parameters(cfg).multiplying / n_bytes  # reads of the array per token
    yield rate_row(
        read, n_bytes / 1e9, "GB/s", **where, what="reading the weights", ratio=mine.over(read) / NEW / floor,
        bar=FLOOR_BAR if name == "L" else None, at_most=True, note="ratio: a token's time over one read of all weights",
    )  # fmt: skip


def peer_run(peer, ids, how):
    def run() -> None:
        with torch.no_grad():
            peer.eval().generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **how
            )  # fmt: skip

    return run


@torch.no_grad()
def by_context(name: str, options, steps: int = 8) -> Iterator[Row]:
    """Milliseconds per token after contexts of growing length, cached and not."""
    cfg = SIZES[name].config
    model = ours(cfg).eval()
    longest = max(CONTEXTS[:3] if options.quick else CONTEXTS)
    cache, copy = model.new_cache(1, longest + 1), DecodeCopy(model, longest + 1)
    cached_runs, plain_runs = {}, {}
    for context in (c for c in CONTEXTS if c <= longest):
        ids = torch.randint(0, cfg.vocab_size, (1, context + 1))
        cached_runs[context] = lambda at=context: again(copy, cache, at, steps)
        plain_runs[context] = lambda ids=ids: model(ids)
    cached = in_turns(cached_runs, options.rounds, options.clock)
    plain = in_turns(plain_runs, 1 if options.quick else 2, options.clock)
    first = 1e3 * cached[CONTEXTS[0]].median / steps
    for context, time in cached.items():
        where = {"section": "decode", "case": f"{name}, context {context:,}", "unit": "ms"}
        each, low, high = (1e3 * s / steps for s in (time.median, min(time.seconds), max(time.seconds)))
        read = kv_cache_bytes(cfg, context, bytes_per_number=4) / 1e6
        grown = f"{each - first:+.2f} ms, and {read:.1f} MB of keys and values to read"
        yield Row(**where, what="with the cache", value=each, low=low, high=high, note=grown)
        whole = 1e3 * plain[context].median
        yield Row(**where, what="without", value=whole, ratio=whole / each)


def again(copy: DecodeCopy, cache, context: int, steps: int) -> None:
    """The token after `context` others, several times."""
    cache.length = context + 1
    for _ in range(steps):
        copy.logits(torch.ones(1, dtype=torch.int64), cache)
