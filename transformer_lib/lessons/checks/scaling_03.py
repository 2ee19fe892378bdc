"""Exercises of notebook 03: the spread of scores, entropy, the softmax's Jacobian, and the gradient at a query."""

import math

import torch

from transformer_lib.lessons.exercises import Exercise

AUTOGRAD = ("grad", "backward", "jacobian", "_make_dual")


def spread_cases(rng):
    yield from ((64, 1.0, 1.0), (7, 2.0, 0.5), (100, 0.3, 1.7), (1, 3.0, 2.0))


def weight_cases(rng):
    """Weights over n keys; the later ones hold exact zeros, as behind a mask or after an underflow."""
    for n in (3, 5, 8):
        yield (torch.softmax(torch.randn(n, dtype=torch.float64), dim=0),)
    yield (torch.tensor([0.25, 0.0, 0.75, 0.0], dtype=torch.float64),)


def gradient_cases(rng):
    for n, d_k in ((3, 5), (7, 4), (6, 16)):
        make = (torch.randn(d_k), torch.randn(n, d_k), torch.randn(n))
        yield tuple(part.double() for part in make)


def jacobian(a):
    return torch.diag(a) - a[:, None] * a


def gradient(q, keys, g, scale=None, through=None):
    """What autograd gives for the loss whose gradient at the weights is g."""
    scale = 1 / math.sqrt(len(q)) if scale is None else scale
    a = torch.softmax(scale * (keys @ q), dim=0)  # (n,)
    at_scores = (jacobian(a) if through is None else through(a)) @ g  # (n,)
    return scale * (keys.T @ at_scores)  # (d_k,)


def without_outer_scale(q, keys, g):
    return gradient(q, keys, g) * math.sqrt(len(q))


EXERCISES = [
    Exercise(
        "score_spread",
        reference=lambda d_k, std_q, std_k: math.sqrt(d_k) * std_q * std_k,
        cases=spread_cases,
        mistakes={
            "this is the variance; the standard deviation is its square root": lambda d_k, std_q, std_k: (
                d_k * std_q**2 * std_k**2
            ),
            "variances add up, standard deviations do not: √d_k, not d_k": lambda d_k, std_q, std_k: (
                d_k * std_q * std_k
            ),
            "the spread of the components is missing: this holds only if both are 1": lambda d_k, std_q, std_k: (
                math.sqrt(d_k)
            ),
            "the standard deviations are multiplied, not added": lambda d_k, std_q, std_k: (
                math.sqrt(d_k) * (std_q + std_k)
            ),
        },
        praise="So a model can undo the division, or the lack of it, by the size of W_Q and W_K.",
    ),
    Exercise(
        "entropy_bits",
        reference=lambda a: torch.special.entr(a).sum() / math.log(2),
        cases=weight_cases,
        mistakes={
            "this is in nats: take the logarithm to base 2": lambda a: torch.special.entr(a).sum(),
            "the sign is missing: the logarithm of a weight is negative": lambda a: (
                -torch.special.entr(a).sum() / math.log(2)
            ),
            "a weight of 0 gives 0 · log 0 = nan; its share of the entropy is 0": lambda a: -(a * torch.log2(a)).sum(),
            "each logarithm must be weighted by its own weight, not averaged evenly": lambda a: -torch.log2(a).mean(),
            "this is 2 to the power of the entropy; return the entropy": lambda a: torch.special.entr(a).sum().exp(),
        },
        tolerance=1e-4,
        praise="2 to the power of it says how many keys are really read.",
    ),
    Exercise(
        "softmax_jacobian",
        reference=jacobian,
        cases=weight_cases,
        mistakes={
            "the diagonal is missing: entry (i, i) is a_i (1 − a_i), not −a_i²": lambda a: -a[:, None] * a,
            "only the diagonal: every score also moves every other weight, by −a_i a_j": lambda a: torch.diag(
                a * (1 - a)
            ),
            "the sign is wrong: raising a score raises its own weight": lambda a: -jacobian(a),
            "the identity must be multiplied by a_i: entry (i, j) is a_i (δ_ij − a_j)": lambda a: (
                torch.eye(len(a), dtype=a.dtype) - a[:, None] * a
            ),
        },
        forbidden={"the numbers are right, but autograd made them: build J from the weights by its formula": AUTOGRAD},
        praise="Its columns sum to zero: what one weight gains, the others lose.",
    ),
    Exercise(
        "gradient_at_query",
        reference=gradient,
        cases=gradient_cases,
        mistakes={
            "the last factor 1 / √d_k is missing: the division is part of the chain": without_outer_scale,
            "the scores are not divided by √d_k": lambda q, keys, g: gradient(q, keys, g, scale=1.0),
            "the softmax's Jacobian is missing: g is the gradient at the weights, not at the scores": (
                lambda q, keys, g: gradient(q, keys, g, through=lambda a: torch.eye(len(a), dtype=a.dtype))
            ),
            "only the Jacobian's diagonal is used": lambda q, keys, g: gradient(
                q, keys, g, through=lambda a: torch.diag(a * (1 - a))
            ),
            "a ∘ g is one half of the Jacobian: the other is −a (a · g)": lambda q, keys, g: gradient(
                q, keys, g, through=torch.diag
            ),
            "the last factor is there, but the scores in the softmax are not divided by √d_k": lambda q, keys, g: (
                gradient(q, keys, g, scale=1.0) / math.sqrt(len(q))
            ),
        },
        forbidden={"the numbers are right, but autograd made them: go back through the chain rule yourself": AUTOGRAD},
        praise="This is all that a query ever hears of the loss.",
    ),
]
