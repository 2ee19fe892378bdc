"""Exercises of notebook 12: where induction looks, rows of another RoPE layout, fewer bits, and a chat as text."""

import torch

from transformer_lib.explorers.real_model import echoes
from transformer_lib.lessons.exercises import Exercise
from transformer_lib.positions import interleaved_to_half_split
from transformer_lib.pretrained import chat_prompt


def target_cases(rng):
    yield ([5, 8, 5, 9, 5, 8, 8, 3],)
    yield ([1, 2, 3, 4],)
    yield ([7, 7, 7, 1, 7],)
    yield (rng.integers(6, size=30).tolist(),)


def targets(ids):
    found = echoes(ids)
    return [found.get(i, -1) for i in range(len(ids))]


def first_targets(ids):
    return [ids.index(token) + 1 if token in ids[:i] else -1 for i, token in enumerate(ids)]


def own_targets(ids):
    return [key - 1 if key >= 0 else -1 for key in targets(ids)]


def row_cases(rng):
    for heads, d_k, d in ((3, 8, 5), (2, 6, 7), (5, 4, 9)):
        yield torch.randn(heads * d_k, d), d_k


def half_split_rows(w, d_k):
    return w.unflatten(0, (-1, d_k))[:, interleaved_to_half_split(d_k)].flatten(0, 1)  # (H · d_k, d)


def interleaved_rows(w, d_k):
    return w.unflatten(0, (-1, d_k))[:, interleaved_to_half_split(d_k).argsort()].flatten(0, 1)


def across_heads(w, d_k):
    return torch.cat([w[0::2], w[1::2]])


def bit_cases(rng):
    for shape, bits in (((5, 32), 4), ((7, 32), 2), ((3, 8), 3), ((2, 16), 8)):
        yield torch.randn(shape), bits


def rounded(blocks, bits, steps=None, per_block=True, cut=torch.round):
    """Each row rounded to 2^bits equally spaced levels from its smallest to its largest number."""
    dim = {"dim": 1, "keepdim": True} if per_block else {}
    low, high = blocks.amin(**dim), blocks.amax(**dim)
    step = (high - low) / (2**bits - 1 if steps is None else steps)
    return cut((blocks - low) / step) * step + low


def rounded_around_zero(blocks, bits):
    step = blocks.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (blocks / step).round() * step


def chat_cases(rng):
    start = {"role": "system", "content": "Be brief."}
    ask, answer = {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}
    yield ([start, ask],)
    yield ([start, ask, answer, {"role": "user", "content": "And\n3 + 3?"}],)


EXERCISES = [
    Exercise(
        "induction_targets",
        reference=targets,
        cases=target_cases,
        mistakes={
            "this is the earlier occurrence itself; an induction head looks at the token after it": own_targets,
            "it takes the first occurrence; asked is the last one before the present token": first_targets,
            "a token that has not occurred before has no target: −1": lambda ids: [max(key, 0) for key in targets(ids)],
        },
        praise="What stands there is the guess for what comes next: the copying rule of an induction head.",
    ),
    Exercise(
        "gguf_rows",
        reference=half_split_rows,
        cases=row_cases,
        mistakes={
            "this is the way back, from the half-split layout to the interleaved one": interleaved_rows,
            "the reordering stays inside each head of d_k rows": across_heads,
            "nothing was reordered: with this a model writes fluent text for a while, then rubbish": lambda w, d_k: w,
        },
        praise="Even rows of a head first, then its odd ones: the importer does this to W_Q and W_K of every block.",
    ),
    Exercise(
        "round_to_bits",
        reference=rounded,
        cases=bit_cases,
        mistakes={
            "b bits give 2^b levels, and between them 2^b − 1 steps": lambda w, b: rounded(w, b, steps=2**b),
            "each row has a smallest and a largest number of its own": lambda w, b: rounded(w, b, per_block=False),
            "this cuts off; the nearest level needs rounding": lambda w, b: rounded(w, b, cut=torch.floor),
            "the levels run from the row's smallest number to its largest, not from −max to max": rounded_around_zero,
        },
        praise="With 4 bits and rows of 32 this is the format Q4_1, up to the precision of its two stored numbers.",
    ),
    Exercise(
        "chat_text",
        reference=chat_prompt,
        cases=chat_cases,
        mistakes={
            "the text must end with the opened turn of the assistant, or the model may go on as the user": lambda m: (
                chat_prompt(m).removesuffix("<|im_start|>assistant\n")
            ),
            "a newline follows <|im_end|>": lambda m: chat_prompt(m).replace("<|im_end|>\n", "<|im_end|>"),
            "the role stands on a line of its own": lambda m: chat_prompt(m).replace("\n", " "),
        },
        praise="To the model a conversation is one text; the template only marks whose turn it is.",
    ),
]
