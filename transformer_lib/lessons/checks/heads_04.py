"""Exercises of notebook 04: cut into heads, merge again, all of multi-head attention, one head's write, a score.

The projections are given as matrices (d_model, H · d_k), and H · d_k need not equal d_model: notebook 08 puts the
learner's functions into the toy, whose heads are wider than d_model / H.
"""

import math

import torch

from transformer_lib.attention import causal_mask, scaled_dot_product_attention
from transformer_lib.lessons.exercises import Exercise


def split_heads(x, h):
    return x.unflatten(-1, (h, -1)).transpose(1, 2)  # (B, T, H · d_k) -> (B, H, T, d_k)


def merge_heads(heads):
    return heads.transpose(1, 2).flatten(2)  # (B, H, T, d_k) -> (B, T, H · d_k)


def attention_of(x, w_q, w_k, w_v, h, scale=None, mask=None):
    q, k, v = (split_heads(x @ w, h) for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(q, k, v, mask, scale)  # (B, H, T, d_k)


def multi_head(x, w_q, w_k, w_v, w_o, h):
    return merge_heads(attention_of(x, w_q, w_k, w_v, h)) @ w_o


def divided_by_d_model(x, w_q, w_k, w_v, w_o, h):
    return merge_heads(attention_of(x, w_q, w_k, w_v, h, scale=1 / math.sqrt(x.shape[-1]))) @ w_o


def merged_without_transpose(x, w_q, w_k, w_v, w_o, h):
    heads = attention_of(x, w_q, w_k, w_v, h)
    return heads.reshape(*x.shape[:2], -1) @ w_o


def heads_see_heads(x, w_q, w_k, w_v, w_o, h):
    """Cut without the transpose: within each token, heads look at one another."""
    q, k, v = ((x @ w).unflatten(-1, (h, -1)) for w in (w_q, w_k, w_v))  # (B, T, H, d_k)
    return scaled_dot_product_attention(q, k, v).flatten(2) @ w_o


def one_wide_head(x, w_q, w_k, w_v, w_o, h):
    return scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v) @ w_o


def rows_of(w_o, i, d_k):
    return w_o[i * d_k : (i + 1) * d_k]  # (d_k, d_model)


def job_score(weights, right):
    return (weights * right).sum(dim=-1).mean(dim=-1)  # (H, N, T) -> (H, N) -> (H,)


def split_cases(rng):
    for b, t, h, d_k in ((2, 5, 3, 4), (1, 6, 2, 7), (3, 4, 5, 2)):
        yield torch.randn(b, t, h * d_k), h


def merge_cases(rng):
    for b, t, h, d_k in ((2, 5, 3, 4), (1, 6, 2, 7), (3, 4, 5, 2)):
        yield (torch.randn(b, h, t, d_k),)


def multi_head_cases(rng):
    for b, t, d, h, d_k in ((2, 5, 11, 3, 4), (1, 6, 9, 2, 7), (3, 4, 8, 5, 2)):
        yield (
            torch.randn(b, t, d),
            *(torch.randn(d, h * d_k) / math.sqrt(d) for _ in range(3)),
            torch.randn(h * d_k, d),
            h,
        )


def write_cases(rng):
    for b, t, h, d_k, d, i in ((2, 5, 3, 4, 11, 1), (1, 6, 2, 7, 9, 1), (3, 4, 5, 2, 8, 3)):
        yield torch.randn(b, t, h, d_k), torch.randn(h * d_k, d), i


def score_cases(rng):
    for h, n, t in ((3, 5, 8), (2, 9, 6), (4, 3, 7)):
        yield torch.softmax(2 * torch.randn(h, n, t), dim=-1), torch.from_numpy(rng.random((n, t)) < 0.4)


EXERCISES = [
    Exercise(
        "split_heads",
        reference=split_heads,
        cases=split_cases,
        mistakes={
            "`view` to (B, H, T, d_k) cuts across tokens: first (B, T, H, d_k), then transpose": lambda x, h: x.reshape(
                x.shape[0], h, x.shape[1], -1
            ),
            "the transpose is missing: this is (B, T, H, d_k), and each head must come with all its tokens": (
                lambda x, h: x.unflatten(-1, (h, -1))
            ),
            "neighbouring columns go to different heads; head 0 gets the first d_k columns": lambda x, h: x.unflatten(
                -1, (-1, h)
            ).permute(0, 3, 1, 2),
        },
        praise="These are the numbers of the library's `split_heads`.",
    ),
    Exercise(
        "merge_heads",
        reference=merge_heads,
        cases=merge_cases,
        mistakes={
            "reshape alone mixes tokens: transpose back to (B, T, H, d_k) first": lambda heads: heads.reshape(
                heads.shape[0], heads.shape[2], -1
            ),
            "the heads are interleaved; the d_k numbers of one head must stay together": lambda heads: heads.permute(
                0, 2, 3, 1
            ).flatten(2),
            "the heads are summed; concatenate them": lambda heads: heads.sum(dim=1),
        },
        praise="It undoes split_heads.",
    ),
    Exercise(
        "multi_head",
        reference=multi_head,
        cases=multi_head_cases,
        tolerance=1e-4,
        mistakes={
            "the scores are divided by √d_model; each head needs √d_k": divided_by_d_model,
            "the heads are not mixed by W_O": lambda x, w_q, w_k, w_v, w_o, h: merge_heads(
                attention_of(x, w_q, w_k, w_v, h)
            ),
            "this is one wide head: cut q, k and v before the scores": one_wide_head,
            "the heads are merged without a transpose, which mixes tokens": merged_without_transpose,
            "without a transpose before the scores, heads look at heads, not tokens at tokens": heads_see_heads,
            "queries and keys have changed places": lambda x, w_q, w_k, w_v, w_o, h: multi_head(
                x, w_k, w_q, w_v, w_o, h
            ),
            "a causal mask is in it; here every token sees all": lambda x, w_q, w_k, w_v, w_o, h: (
                merge_heads(attention_of(x, w_q, w_k, w_v, h, mask=causal_mask(x.shape[1]))) @ w_o
            ),
        },
        praise="Notebook 5 adds the mask.",
    ),
    Exercise(
        "head_write",
        reference=lambda heads, w_o, i: heads[:, :, i] @ rows_of(w_o, i, heads.shape[-1]),
        cases=write_cases,
        tolerance=1e-4,
        mistakes={
            "this is what all heads write together": lambda heads, w_o, i: heads.flatten(2) @ w_o,
            "these rows of W_O belong to the next head: head i owns rows i · d_k to (i + 1) · d_k − 1": (
                lambda heads, w_o, i: heads[:, :, i] @ rows_of(w_o, (i + 1) % heads.shape[2], heads.shape[-1])
            ),
            "every H-th row of W_O is taken; a head owns d_k neighbouring rows": lambda heads, w_o, i: (
                heads[:, :, i] @ w_o[i :: heads.shape[2]]
            ),
            "every head meets the first d_k rows of W_O; head i owns rows i · d_k to (i + 1) · d_k − 1": (
                lambda heads, w_o, i: heads[:, :, i] @ rows_of(w_o, 0, heads.shape[-1])
            ),
        },
    ),
    Exercise(
        "job_score",
        reference=job_score,
        cases=score_cases,
        mistakes={
            "this averages over the keys too: add the weights on the right keys, then take the mean over questions": (
                lambda w, right: (w * right).mean(dim=(1, 2))
            ),
            "this adds up the questions: take their mean, so that the score stays between 0 and 1": (
                lambda w, right: (w * right).sum(dim=(1, 2))
            ),
            "this takes one right key per question: several may be right, and their weights add up": (
                lambda w, right: (w * right).amax(dim=-1).mean(dim=-1)
            ),
            "this is one number for all heads: keep one per head": lambda w, right: (w * right).sum(-1).mean(),
            "this counts how often the largest weight is right; the score adds up the weights themselves": (
                lambda w, right: right.gather(1, w.argmax(-1).T).float().mean(dim=0)
            ),
        },
        praise="`head_scores` measures every head of this notebook like this.",
    ),
]
