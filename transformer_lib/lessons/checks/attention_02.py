"""Exercises of notebook 02: scores, a stable softmax, attention, the soft look-up, and what it costs.

All work on batches (…, T, d) too: notebook 08 builds a block out of the learner's own functions.
"""

import math

import torch

from transformer_lib.attention import scaled_dot_product_attention
from transformer_lib.lessons.exercises import Exercise


def vectors(rng, *widths):
    """A batch and a single sequence of queries, keys (and values); no two sizes coincide."""
    for lead, t_q, t_k, extra in (((), 3, 5, 0), ((2,), 4, 7, 1), ((), 1, 6, 2)):
        counts = (t_q, *[t_k] * (len(widths) - 1))
        yield tuple(torch.randn(*lead, t, width + extra) for t, width in zip(counts, widths, strict=True))


def score_cases(rng):
    yield from vectors(rng, 8, 8)


def softmax_cases(rng):
    yield (torch.randn(3, 5),)
    yield (torch.randn(2, 4, 7),)
    yield (torch.tensor([[1000.0, 999.0, 998.0, 990.0], [0.0, -1.0, 2.0, 1.0]]),)
    yield (torch.tensor([[0.5, 1.5, -math.inf], [0.0, -math.inf, -math.inf]]),)


def attention_cases(rng):
    yield from vectors(rng, 8, 8, 10)


def gap_cases(rng):
    yield from ((0.0, 5), (2.0, 3), (7.5, 100), (40.0, 17))


def cost_cases(rng):
    yield from ((3, 5, 4, 7), (1, 9, 2, 6), (1024, 512, 64, 32))


def scores(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


SOFTMAX = ("softmax", "log_softmax", "softmin", "special_softmax", "special_log_softmax")


def softmax(s):
    e = torch.exp(s - s.amax(dim=-1, keepdim=True))
    return e / e.sum(dim=-1, keepdim=True)


def one_maximum(s):
    """Subtracts the maximum of everything."""
    e = torch.exp(s - s.max())
    return e / e.sum(-1, keepdim=True)


def unstable(s):
    e = torch.exp(s)
    return e / e.sum(-1, keepdim=True)


EXERCISES = [
    Exercise(
        "scores",
        reference=scores,
        cases=score_cases,
        mistakes={
            "the scores are not divided by √d_k": lambda q, k: q @ k.transpose(-2, -1),
            "this divides by d_k, not by its square root": lambda q, k: q @ k.transpose(-2, -1) / q.shape[-1],
            "rows and columns are swapped: row i must belong to query i": lambda q, k: scores(k, q),
            "this divides by √T_k, the number of keys, not by √d_k": lambda q, k: (
                q @ k.transpose(-2, -1) / math.sqrt(k.shape[-2])
            ),
            "this divides by √T_q, the number of queries, not by √d_k": lambda q, k: (
                q @ k.transpose(-2, -1) / math.sqrt(q.shape[-2])
            ),
        },
        praise="It works on batches as well, so notebook 8 can build a block with it.",
    ),
    Exercise(
        "softmax",
        reference=softmax,
        cases=softmax_cases,
        mistakes={
            "not stable: exp overflows for scores of 1,000; subtract each row's maximum first": unstable,
            "one maximum for the whole tensor: subtract each row its own, or a low row becomes 0 / 0": one_maximum,
            "softmax over the wrong axis: each row must sum to one, not each column": lambda s: torch.softmax(
                s, dim=-2
            ),
            "the axis is counted from the front: rows are dim=-1, whatever stands before": lambda s: torch.softmax(
                s, dim=1
            ),
            "softmax over the first axis: rows are dim=-1, whatever stands before": lambda s: torch.softmax(s, dim=0),
            "everything together sums to one; each row must": lambda s: torch.softmax(s.flatten(), 0).view_as(s),
            "the scores are divided by their sum without exp first": lambda s: s / s.sum(-1, keepdim=True),
        },
        forbidden={
            "the numbers are right, but torch's softmax made them: write it with exp, maximum and sum": SOFTMAX,
        },
        praise="A score of −∞ gets the weight 0 exactly, which notebook 5 needs for its mask.",
    ),
    Exercise(
        "attention",
        reference=scaled_dot_product_attention,
        cases=attention_cases,
        mistakes={
            "this averages the keys, not the values": lambda q, k, v: torch.softmax(scores(q, k), -1) @ k,
            "the scores are not divided by √d_k": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1) @ v,
            "the softmax runs over the queries: for each query, the weights of the keys must sum to one": (
                lambda q, k, v: torch.softmax(scores(q, k), -2) @ v
            ),
            "the softmax is missing: scores, not weights, multiply the values": lambda q, k, v: scores(q, k) @ v,
            "this returns the weights; multiply them by the values": lambda q, k, v: torch.softmax(scores(q, k), -1),
        },
        praise="These are the numbers of the library and of torch.",
    ),
    Exercise(
        "weight_of_best",
        reference=lambda gap, n: 1 / (1 + (n - 1) * math.exp(-gap)),
        cases=gap_cases,
        mistakes={
            "the gap has the wrong sign: a larger gap must give a larger weight": lambda gap, n: (
                1 / (1 + (n - 1) * math.exp(gap))
            ),
            "there are n − 1 other keys, not n": lambda gap, n: 1 / (1 + n * math.exp(-gap)),
            "this counts a single other key; there are n − 1": lambda gap, n: 1 / (1 + math.exp(-gap)),
        },
    ),
    Exercise(
        "multiply_adds",
        reference=lambda t_q, t_k, d_k, d_v: t_q * t_k * (d_k + d_v),
        cases=cost_cases,
        mistakes={
            "this counts the scores only; averaging the values costs T_q · T_k · d_v more": lambda t_q, t_k, d_k, d_v: (
                t_q * t_k * d_k
            ),
            "these are FLOPs: one multiply-add counts as 1 here, not 2": lambda t_q, t_k, d_k, d_v: (
                2 * t_q * t_k * (d_k + d_v)
            ),
            "there are T_q · T_k pairs, not T_k²": lambda t_q, t_k, d_k, d_v: t_k**2 * (d_k + d_v),
            "this counts one query only; there are T_q": lambda t_q, t_k, d_k, d_v: t_k * (d_k + d_v),
        },
    ),
]
