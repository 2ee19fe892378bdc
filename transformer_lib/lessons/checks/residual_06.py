"""Exercises of notebook 06: the two norms, a pre-norm step, and the logit lens."""

import torch
import torch.nn.functional as F

from transformer_lib.lessons.exercises import Exercise

TORCH_NORMS = ("layer_norm", "rms_norm", "native_layer_norm", "group_norm", "instance_norm", "batch_norm")


def norm_cases(rng):
    """Vectors of ordinary and of tiny size, with a mean that is not 0; in the tiny ones eps decides."""
    for shape, size in (((3, 5), 1.0), ((2, 3, 7), 4.0), ((4, 6), 1e-3)):
        x = size * (torch.randn(shape, dtype=torch.float64) + 0.8)
        yield x, torch.rand(shape[-1], dtype=torch.float64) + 0.5, 1e-5


def layer_norm_cases(rng):
    for x, weight, eps in norm_cases(rng):
        yield x, weight, torch.randn(len(weight), dtype=torch.float64), eps


def rms(x, eps, inside=True):
    square = x.pow(2).mean(dim=-1, keepdim=True)
    return torch.sqrt(square + eps) if inside else torch.sqrt(square) + eps


def centred(x):
    return x - x.mean(dim=-1, keepdim=True)


def layer_norm(x, weight, bias, eps):
    return centred(x) / spread_of(x, eps, False) * weight + bias


def spread_of(x, eps, unbiased):
    return torch.sqrt(x.var(dim=-1, keepdim=True, unbiased=unbiased) + eps)


def step_cases(rng):
    """A stream, a norm and a sublayer that is neither linear nor odd."""
    for shape in ((3, 5), (2, 4, 6)):
        matrix = torch.randn(shape[-1], shape[-1], dtype=torch.float64)
        yield (
            2 * torch.randn(shape, dtype=torch.float64) + 1,
            lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
            lambda x, matrix=matrix: torch.relu(x @ matrix) + 0.1 * x,
        )


def lens_cases(rng):
    for (n, t, d), v in (((3, 4, 6), 9), ((2, 5, 8), 11)):
        streams = torch.randn(n, t, d, dtype=torch.float64) * torch.arange(1, n + 1)[:, None, None]
        yield streams, torch.rand(d, dtype=torch.float64) + 0.5, torch.randn(v, d, dtype=torch.float64), 1e-5


def lens(streams, weight, table, eps):
    return streams / rms(streams, eps) * weight @ table.T


EXERCISES = [
    Exercise(
        "rms_norm",
        reference=lambda x, weight, eps: x / rms(x, eps) * weight,
        cases=norm_cases,
        mistakes={
            "eps belongs inside the root: on a tiny vector it makes a difference": lambda x, weight, eps: (
                x / rms(x, eps, inside=False) * weight
            ),
            "this subtracts the mean: that is LayerNorm's step": lambda x, weight, eps: (
                centred(x) / rms(centred(x), eps) * weight
            ),
            "the mean of the squares is wanted, not their sum": lambda x, weight, eps: (
                x / torch.sqrt(x.pow(2).sum(dim=-1, keepdim=True) + eps) * weight
            ),
            "the learned scale is missing: multiply by weight": lambda x, weight, eps: x / rms(x, eps),
            "each position has a size of its own: take the mean over the last dimension alone": lambda x, weight, eps: (
                x / torch.sqrt(x.pow(2).mean() + eps) * weight
            ),
        },
        forbidden={"the numbers are right, but torch's norm made them: write it with mean and root": TORCH_NORMS},
        praise="Llama's norm, to the last bit that matters.",
    ),
    Exercise(
        "layer_norm",
        reference=layer_norm,
        cases=layer_norm_cases,
        mistakes={
            "this is the unbiased variance, divided by d − 1; LayerNorm divides by d": lambda x, weight, bias, eps: (
                centred(x) / spread_of(x, eps, True) * weight + bias
            ),
            "eps belongs inside the root: on a tiny vector it makes a difference": lambda x, weight, bias, eps: (
                centred(x) / (spread_of(x, 0, False) + eps) * weight + bias
            ),
            "unbiased variance (torch's default), and eps outside the root": lambda x, weight, bias, eps: (
                centred(x) / (x.std(dim=-1, keepdim=True) + eps) * weight + bias
            ),
            "the shift is missing: add bias": lambda x, weight, bias, eps: layer_norm(x, weight, bias * 0, eps),
            "the mean is not subtracted: that is RMSNorm": lambda x, weight, bias, eps: x / rms(x, eps) * weight + bias,
            "the mean must go from the vector too, not from the variance alone": lambda x, weight, bias, eps: (
                x / spread_of(x, eps, False) * weight + bias
            ),
        },
        forbidden={"the numbers are right, but torch's norm made them: write it with mean and root": TORCH_NORMS},
        praise="The norm of 2017.",
    ),
    Exercise(
        "pre_norm_step",
        reference=lambda x, norm, sublayer: x + sublayer(norm(x)),
        cases=step_cases,
        mistakes={
            "this is post-norm: the norm comes after the add": lambda x, norm, sublayer: norm(x + sublayer(x)),
            "this adds to the normalised stream: the identity path must stay untouched": lambda x, norm, sublayer: (
                norm(x) + sublayer(norm(x))
            ),
            "the stream is replaced, not added to": lambda x, norm, sublayer: sublayer(norm(x)),
            "the norm is missing: the sublayer reads norm(x)": lambda x, norm, sublayer: x + sublayer(x),
            "the norm belongs to what the sublayer reads, not to what it writes": lambda x, norm, sublayer: (
                x + norm(sublayer(x))
            ),
        },
        praise="Two such steps are a block.",
    ),
    Exercise(
        "logit_lens",
        reference=lens,
        cases=lens_cases,
        mistakes={
            "the final norm is missing: the logits grow with the stream": lambda streams, weight, table, eps: (
                streams @ table.T
            ),
            "the final norm's learned scale is missing": lambda streams, weight, table, eps: (
                streams / rms(streams, eps) @ table.T
            ),
            "each layer's stream is read with its own size, not with the last layer's": lambda s, weight, table, eps: (
                s / rms(s[-1:], eps) * weight @ table.T
            ),
            "these are probabilities: return the logits": lambda streams, weight, table, eps: torch.softmax(
                lens(streams, weight, table, eps), dim=-1
            ),
        },
        praise="The last row is what the model really says.",
    ),
]
