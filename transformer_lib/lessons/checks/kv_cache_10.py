"""Exercises of notebook 10: one cached step, shared heads, bytes of a cache, and FLOPs per byte."""

import math

import torch

from transformer_lib.accounting import kv_cache_bytes
from transformer_lib.attention import causal_mask, scaled_dot_product_attention
from transformer_lib.config import TransformerConfig
from transformer_lib.lessons.exercises import Exercise


def step_cases(rng):
    """Stored keys and values, and q, k, v of the new token."""
    for t, d_k, d_v in ((3, 4, 5), (1, 2, 3), (6, 8, 7)):
        yield (
            torch.randn(t, d_k), torch.randn(t, d_v), torch.randn(1, d_k), torch.randn(1, d_k), torch.randn(1, d_v)
        )  # fmt: skip


def step(keys, values, q, k, v, scale=None):
    return scaled_dot_product_attention(q, torch.cat([keys, k]), torch.cat([values, v]), scale=scale)


def grouped_cases(rng):
    for heads, shared, t, d_k in ((6, 2, 5, 4), (4, 4, 3, 2), (8, 2, 7, 6), (3, 1, 4, 5)):
        yield torch.randn(heads, t, d_k), torch.randn(shared, t, d_k), torch.randn(shared, t, d_k)


def grouped(q, k, v, order="blocks"):
    group = q.shape[0] // k.shape[0]
    if order == "blocks":
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    else:
        k, v = k.repeat(group, 1, 1), v.repeat(group, 1, 1)
    return scaled_dot_product_attention(q, k, v, causal_mask(q.shape[1]))


def grouped_without_mask(q, k, v):
    group = q.shape[0] // k.shape[0]
    return scaled_dot_product_attention(q, k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0))


def bytes_cases(rng):
    """n_layers, n_heads, n_kv_heads, d_k, tokens, sequences, bytes_per_number"""
    yield from ((3, 8, 2, 16, 100, 5, 2), (32, 32, 32, 128, 4096, 1, 2), (7, 6, 1, 10, 33, 4, 1))


def cache_bytes(n_layers, n_heads, n_kv_heads, d_k, tokens, sequences, bytes_per_number):
    cfg = TransformerConfig(
        vocab_size=2, d_model=n_heads * d_k, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, max_seq_len=1
    )
    return kv_cache_bytes(cfg, tokens, sequences, bytes_per_number)


def intensity_cases(rng):
    """weights, numbers in the cache of one sequence, sequences, bytes_per_number"""
    yield from ((1000, 300, 1, 2), (1000, 300, 8, 2), (5000, 70, 30, 4), (100, 900, 6, 1))


def intensity(weights, cached, sequences, size, reads_of_weights=1, reads_of_caches=None, flops=2):
    reads_of_caches = sequences if reads_of_caches is None else reads_of_caches
    work = flops * sequences * (weights + cached)
    return work / (size * (reads_of_weights * weights + reads_of_caches * cached))


EXERCISES = [
    Exercise(
        "cached_step",
        reference=step,
        cases=step_cases,
        mistakes={
            "the new token must also see itself: append its key and value before attending": lambda ks, vs, q, k, v: (
                scaled_dot_product_attention(q, ks, vs)
            ),
            "the scores are not divided by √d_k": lambda ks, vs, q, k, v: step(ks, vs, q, k, v, scale=1.0),
            "the new key and value belong behind the stored ones, and in the same order": lambda ks, vs, q, k, v: (
                scaled_dot_product_attention(q, torch.cat([ks, k]), torch.cat([v, vs]))
            ),
            "the new key is first, the new value last: the same order for both": lambda ks, vs, q, k, v: (
                scaled_dot_product_attention(q, torch.cat([k, ks]), torch.cat([vs, v]))
            ),
            "a mask aligned at the top left hides all but the first key; a single new query sees every key": (
                lambda ks, vs, q, k, v: vs[:1]
            ),
            "the scores are divided by √d_v, the width of a value, not by √d_k": lambda ks, vs, q, k, v: (
                step(ks, vs, q, k, v, scale=1 / math.sqrt(v.shape[-1]))
            ),
        },
        praise="One row of scores instead of a square: this is all that decode does in each head.",
    ),
    Exercise(
        "grouped_heads",
        reference=grouped,
        cases=grouped_cases,
        mistakes={
            "neighbouring query heads share a key: 0, 0, 0, 1, 1, 1 (`repeat_interleave`), not 0, 1, 0, 1 (`repeat`)": (
                lambda q, k, v: grouped(q, k, v, order="rounds")
            ),
            "the causal mask is missing": grouped_without_mask,
            "the scores are not divided by √d_k": lambda q, k, v: grouped(q * math.sqrt(q.shape[-1]), k, v),
        },
        praise="Repeat when attending, not when storing: the cache keeps only the shared heads.",
    ),
    Exercise(
        "cache_bytes",
        reference=cache_bytes,
        cases=bytes_cases,
        mistakes={
            "a key and a value: the factor 2 is missing": lambda *a: cache_bytes(*a) // 2,
            "the cache keeps the key/value heads, not one per query head": lambda layers, heads, kv, *rest: (
                cache_bytes(layers, heads, heads, *rest)
            ),
            "each sequence of the batch has its own cache": lambda *a: cache_bytes(*a) // a[5],
            "this counts numbers, not bytes": lambda *a: cache_bytes(*a) // a[6],
        },
        praise="With Llama 2 7B's numbers and one token it is 512 KiB.",
    ),
    Exercise(
        "decode_intensity",
        reference=intensity,
        cases=intensity_cases,
        mistakes={
            "the weights are read once for the whole batch, not once per sequence": lambda w, c, b, size: intensity(
                w, c, b, size, reads_of_weights=b
            ),
            "the caches are missing, or read once for all: every sequence reads its own": lambda w, c, b, size: (
                intensity(w, c, b, size, reads_of_caches=1)
            ),
            "a multiply-add is 2 FLOPs": lambda w, c, b, size: intensity(w, c, b, size, flops=1),
            "this is FLOPs per number; divide by its bytes": lambda w, c, b, size: intensity(w, c, b, 1),
        },
        praise="A larger batch helps only as long as the weights, not the caches, are most of what is read.",
    ),
]  # fmt: skip
