"""Exercises of notebook 09: the numbers of GPT-2, FLOPs of a token and of a sequence, bytes to train."""

from transformer_lib.lessons.exercises import Exercise


def gpt2_cases(rng):
    yield from ((50_257, 1024, 768, 12), (101, 17, 24, 3), (29, 40, 8, 5))


def token_cases(rng):
    yield from ((6_607_077_376, 32, 4096, 4096), (1_000_003, 3, 64, 100), (977, 2, 12, 1))


def sequence_cases(rng):
    yield from ((32, 4096, 4096), (2, 64, 9), (3, 12, 7))


def byte_cases(rng):
    yield from ((6_738_415_616, 11_862_806_528, 4), (1672, 900, 2), (29, 1000, 8))


def gpt2(vocab_size, context, d_model, n_layers):
    block = 12 * d_model**2 + 13 * d_model
    return (vocab_size + context) * d_model + n_layers * block + 2 * d_model


EXERCISES = [
    Exercise(
        "gpt2_total",
        reference=gpt2,
        cases=gpt2_cases,
        mistakes={
            "the table is counted twice: GPT-2's unembedding is the embedding table": lambda v, c, d, n: (
                gpt2(v, c, d, n) + v * d
            ),
            "the position table is missing: one row of d_model numbers per position": lambda v, c, d, n: gpt2(
                v, 0, d, n
            ),
            "the biases are missing: one number per output of each linear layer": lambda v, c, d, n: (
                gpt2(v, c, d, n) - 9 * n * d
            ),
            "attention's biases are missing: four projections with d_model each": lambda v, c, d, n: (
                gpt2(v, c, d, n) - 4 * n * d
            ),
            "a block has two LayerNorms": lambda v, c, d, n: gpt2(v, c, d, n) - 2 * n * d,
            "a LayerNorm has a scale and a shift: 2 · d_model numbers": lambda v, c, d, n: (
                gpt2(v, c, d, n) - (2 * n + 1) * d
            ),
            "the final norm is missing": lambda v, c, d, n: gpt2(v, c, d, n) - 2 * d,
            "W_1 has 4 · d_model outputs, and as many biases": lambda v, c, d, n: gpt2(v, c, d, n) - 3 * n * d,
        },
        praise="GPT-2 small has exactly this many.",
    ),
    Exercise(
        "token_flops",
        reference=lambda multiplying, n_layers, d_model, t: 2 * multiplying + 4 * t * d_model * n_layers,
        cases=token_cases,
        mistakes={
            "these are multiply-adds: each is 2 FLOPs": lambda w, n, d, t: w + 2 * t * d * n,
            "only the weights are counted as 2 FLOPs; so are the multiply-adds of attention": lambda w, n, d, t: (
                2 * w + 2 * t * d * n
            ),
            "this is one layer's attention; there are n_layers": lambda w, n, d, t: 2 * w + 4 * t * d,
            "one token looks at t keys; t² is for a whole sequence": lambda w, n, d, t: 2 * w + 4 * t * t * d * n,
            "a token meets each weight once; t counts in attention alone": lambda w, n, d, t: 2 * w * t + 4 * t * d * n,
            "6 FLOPs per weight is training, forward and backward; here it is 2": lambda w, n, d, t: (
                6 * w + 4 * t * d * n
            ),
            "attention's own arithmetic is missing": lambda w, n, d, t: 2 * w,
        },
    ),
    Exercise(
        "sequence_attention",
        reference=lambda n_layers, d_model, tokens: 2 * n_layers * d_model * tokens * (tokens + 1),
        cases=sequence_cases,
        mistakes={
            "this is the whole square; the causal mask leaves T(T+1)/2 pairs": lambda n, d, t: 4 * n * d * t * t,
            "half the square is T²/2; the diagonal is seen too: T(T+1)/2 pairs": lambda n, d, t: 2 * n * d * t * t,
            "each token sees itself: T(T+1)/2 pairs, not T(T−1)/2": lambda n, d, t: 2 * n * d * t * (t - 1),
            "this counts the scores only; the averages cost as much": lambda n, d, t: n * d * t * (t + 1),
            "this is the last token alone; add up all of them": lambda n, d, t: 4 * n * d * t,
        },
        praise="Twice the tokens, four times the FLOPs, as soon as T is large.",
    ),
    Exercise(
        "training_bytes",
        reference=lambda parameters, activations, bytes_per_number: (4 * parameters + activations) * bytes_per_number,
        cases=byte_cases,
        mistakes={
            "one number per parameter is missing: weight, gradient and two moments of Adam are four": lambda p, a, b: (
                (3 * p + a) * b
            ),
            "Adam's moments are missing: two numbers per parameter": lambda p, a, b: (2 * p + a) * b,
            "the activations are missing": lambda p, a, b: 4 * p * b,
            "these are numbers, not bytes: multiply by bytes_per_number": lambda p, a, b: 4 * p + a,
            "the activations are numbers too: multiply them by bytes_per_number": lambda p, a, b: 4 * p * b + a,
        },
    ),
]
