"""Decoding one sequence: tokens per second beside transformers' generate, and the time that reading the weights takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from transformer_lib.accounting import count_parameters, kv_cache_bytes
from transformer_lib.bench.ceilings import reading
from transformer_lib.bench.models import SIZES, made, ours, transformers_llama
from transformer_lib.bench.report import Row
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
    times = in_turns(runs, min(options.rounds, 3) if name == "L" else options.rounds, options.clock)
    mine, read = times.pop("this library"), times.pop("reading the weights")
    value, low, high = mine.rate(NEW)
    copied = DecodeCopy(model, PROMPT).nbytes / 1e6
    yield Row(section="decode", case=case, what="this library", value=value, low=low, high=high, unit="tokens/s",
              note=f"with a copy of the weights of {copied:,.0f} MB")  # fmt: skip
    for cache, time in times.items():
        value, low, high = time.rate(NEW)
        yield Row(section="decode", case=case, what=cache, value=value, low=low, high=high, unit="tokens/s",
                  ratio=time.over(mine), bar=BARS[name])  # fmt: skip
    if missing:
        yield Row(section="decode", case=case, what="transformers", note=missing)
    floor = 4 * count_parameters(cfg).multiplying / n_bytes  # reads of the array per token
    value, low, high = read.rate(n_bytes / 1e9)
    yield Row(section="decode", case=case, what="reading the weights", value=value, low=low, high=high, unit="GB/s",
              ratio=mine.over(read) / NEW / floor, bar=FLOOR_BAR if name == "L" else None, at_most=True,
              note="ratio: a token's time over one read of all weights")  # fmt: skip


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
        cached_runs[context] = lambda at=context: [copy.logits(1, cache, at) for _ in range(steps)]
        plain_runs[context] = lambda ids=ids: model(ids)
    cached = in_turns(cached_runs, options.rounds, options.clock)
    plain = in_turns(plain_runs, 1 if options.quick else 2, options.clock)
    first = cached[CONTEXTS[0]].median / steps
    for context, time in cached.items():
        each = [1e3 * s / steps for s in (time.median, min(time.seconds), max(time.seconds))]
        grown, read = time.median / steps - first, kv_cache_bytes(cfg, context, bytes_per_number=4) / 1e6
        yield Row(section="decode", case=f"{name}, context {context:,}", what="with the cache", value=each[0],
                  low=each[1], high=each[2], unit="ms", note=f"{1e3 * grown:+.2f} ms for {read:.1f} MB of keys and values")  # fmt: skip
        yield Row(section="decode", case=f"{name}, context {context:,}", what="without", value=1e3 * plain[context].median,
                  unit="ms", ratio=plain[context].median / (time.median / steps))  # fmt: skip
