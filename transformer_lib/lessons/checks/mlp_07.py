"""Exercises of notebook 07: the MLP, SiLU, SwiGLU, its width, and what a neuron promotes."""

import torch
import torch.nn.functional as F

from transformer_lib.config import TransformerConfig
from transformer_lib.lessons.exercises import Exercise


def mlp_cases(rng):
    """x, then W₁ (d_ff, d_model) and W₂ (d_model, d_ff), as torch stores them."""
    for shape, d_ff in (((3, 5), 11), ((2, 4, 6), 13), ((7,), 9)):
        yield tuple(torch.randn(s, dtype=torch.float64) for s in (shape, (d_ff, shape[-1]), (shape[-1], d_ff)))


def swiglu_cases(rng):
    for x, w_1, w_2 in mlp_cases(rng):
        yield x, w_1, w_2, torch.randn_like(w_1)


def silu_cases(rng):
    yield (torch.linspace(-9, 9, 37, dtype=torch.float64),)
    yield (3 * torch.randn(4, 5, dtype=torch.float64),)
    yield (torch.tensor([-90.0, 0.0, 90.0]),)


def width_cases(rng):
    yield from ((4096, 256), (2048, 1), (8192, 4096), (5120, 256), (576, 64), (1024, 1), (100, 7), (96, 256))


def width(d_model, multiple):
    sized = TransformerConfig(
        vocab_size=2, d_model=d_model, n_layers=1, n_heads=1, max_seq_len=1, positions="none", d_ff_multiple=multiple
    )
    return sized.ff_width


def promoted_cases(rng):
    """W₂ (d_model, d_ff), the unembedding (V, d_model), the neuron's number, and how many ids."""
    for d_model, d_ff, v, neuron, k in ((5, 13, 17, 3, 4), (8, 21, 40, 6, 7)):
        yield torch.randn(d_model, d_ff).double(), torch.randn(v, d_model).double(), neuron, k


EXERCISES = [
    Exercise(
        "mlp",
        reference=lambda x, w_1, w_2: F.relu(x @ w_1.T) @ w_2.T,
        cases=mlp_cases,
        mistakes={
            "the nonlinearity is missing, so the two matrices act as one": lambda x, w_1, w_2: x @ w_1.T @ w_2.T,
            "ReLU belongs between the matrices, not after the second": lambda x, w_1, w_2: F.relu(x @ w_1.T @ w_2.T),
            "the output must stay free to be negative: no ReLU after W₂": lambda x, w_1, w_2: F.relu(
                F.relu(x @ w_1.T) @ w_2.T
            ),
            "this bends with GELU; the MLP of 2017 has ReLU": lambda x, w_1, w_2: F.gelu(x @ w_1.T) @ w_2.T,
            "this bends with SiLU; the MLP of 2017 has ReLU": lambda x, w_1, w_2: F.silu(x @ w_1.T) @ w_2.T,
            "the stream is added in it; the block does that": lambda x, w_1, w_2: x + F.relu(x @ w_1.T) @ w_2.T,
            "ReLU is applied to the input; it belongs after W₁": lambda x, w_1, w_2: F.relu(x) @ w_1.T @ w_2.T,
        },
        praise="This is the MLP of 2017, without its biases.",
    ),
    Exercise(
        "silu",
        reference=lambda x: x * torch.sigmoid(x),
        cases=silu_cases,
        mistakes={
            "this is the sigmoid alone; SiLU multiplies it by x": torch.sigmoid,
            "this is ReLU, SiLU's limit: the sigmoid is missing": F.relu,
            "the sigmoid's sign is turned: it must near 1 where x is large": lambda x: x * torch.sigmoid(-x),
            "this is GELU: it weighs x by the normal distribution, SiLU by the sigmoid": F.gelu,
        },
        forbidden={"the numbers are right, but torch's SiLU made them: write it with the sigmoid": ("silu", "silu_")},
        praise="A gate that x opens for itself.",
    ),
    Exercise(
        "swiglu",
        reference=lambda x, w_1, w_2, w_3: (F.silu(x @ w_1.T) * (x @ w_3.T)) @ w_2.T,
        cases=swiglu_cases,
        mistakes={
            "W₁ and W₃ have changed places: SiLU goes on W₁ x": lambda x, w_1, w_2, w_3: (
                ((x @ w_1.T) * F.silu(x @ w_3.T)) @ w_2.T
            ),
            "the copies are added; the gate multiplies": lambda x, w_1, w_2, w_3: (
                (F.silu(x @ w_1.T) + x @ w_3.T) @ w_2.T
            ),
            "SiLU is missing: this is a product of two linear maps": lambda x, w_1, w_2, w_3: (
                ((x @ w_1.T) * (x @ w_3.T)) @ w_2.T
            ),
            "this gates by the sigmoid alone (that is GLU); SwiGLU gates by SiLU": lambda x, w_1, w_2, w_3: (
                (torch.sigmoid(x @ w_1.T) * (x @ w_3.T)) @ w_2.T
            ),
            "this gates by GELU; SwiGLU gates by SiLU": lambda x, w_1, w_2, w_3: (
                (F.gelu(x @ w_1.T) * (x @ w_3.T)) @ w_2.T
            ),
            "W₃ is left out: there is nothing to gate": lambda x, w_1, w_2, w_3: F.silu(x @ w_1.T) @ w_2.T,
            "SiLU is applied to both copies; only the gate has it": lambda x, w_1, w_2, w_3: (
                (F.silu(x @ w_1.T) * F.silu(x @ w_3.T)) @ w_2.T
            ),
        },
        praise="Notebook 8 puts it into a block.",
    ),
    Exercise(
        "swiglu_width",
        reference=width,
        cases=width_cases,
        mistakes={
            "two thirds are missing: this rounds 4 · d_model": lambda d, m: -(-4 * d // m) * m,
            "it rounds down; the width goes up to the next multiple": lambda d, m: 8 * d // 3 // m * m,
            "it takes the nearest multiple; the width goes up to the next": lambda d, m: round(8 * d // 3 / m) * m,
            "round down once: the whole part of 8 · d_model / 3, not twice that of 4 · d_model / 3": lambda d, m: (
                -(-2 * (4 * d // 3) // m) * m
            ),
            "it is not rounded to the multiple": lambda d, m: 8 * d // 3,
            "a width that is a multiple already must stay": lambda d, m: (8 * d // 3 // m + 1) * m,
        },
        praise="It gives 11,008 for Llama 2 7B.",
    ),
    Exercise(
        "promoted_ids",
        reference=lambda w_2, table, n, k: (table @ w_2[:, n]).topk(k).indices,
        cases=promoted_cases,
        mistakes={
            "these are the ids that it lowers most: take the largest logits": lambda w_2, table, n, k: (
                (-(table @ w_2[:, n])).topk(k).indices
            ),
            "sorted by size without sign; a logit of −5 is pushed down, not up": lambda w_2, table, n, k: (
                (table @ w_2[:, n]).abs().topk(k).indices
            ),
            "these are the logits; the ids are their places (`.indices`)": lambda w_2, table, n, k: (
                (table @ w_2[:, n]).topk(k).values
            ),
            "these are the right ids, weakest first": lambda w_2, table, n, k: (table @ w_2[:, n]).argsort()[-k:],
        },
        praise="The logit lens of notebook 6, for one neuron.",
    ),
]
