"""Exercises of notebook 01: two steps of BPE, the look-up, and RoPE."""

from collections import Counter
from itertools import pairwise

import torch
import torch.nn.functional as F

from transformer_lib.bpe import merge_pair
from transformer_lib.lessons.exercises import Exercise
from transformer_lib.positions import rotate, rotation

# --- Byte-pair encoding ---


def piece_cases(rng):
    yield (list("banana"),)
    yield (["the", "o", "x", "the", "o", "b", "o", "x"],)
    yield (list("xyxyzxz"),)
    yield (["ab", "c", "ab", "d", "ab", "d", "c"],)
    yield (["x", "ban", "d", "ban", "d", "a", "n"],)


def merge_cases(rng):
    yield list("banana"), ("a", "n")
    yield list("baaaab"), ("a", "a")
    yield ["th", "e", "o", "th", "e", "th"], ("th", "e")
    yield list("xyz"), ("z", "x")
    yield list("baaab"), ("a", "a")
    yield ["ba", "n", "a", "n"], ("a", "n")


def most_frequent(pieces):
    return max(Counter(pairwise(pieces)).items(), key=lambda item: item[1])[0]


def every_second_pair(pieces):
    return Counter(zip(pieces[::2], pieces[1::2], strict=False)).most_common(1)[0][0]


def counted_in_text(pieces):
    text = "".join(pieces)
    return max(pairwise(pieces), key=lambda pair: text.count("".join(pair)))


def is_as_frequent(result, pieces):
    pairs = list(pairwise(pieces))
    return isinstance(result, tuple | list) and pairs.count(tuple(result)) == pairs.count(most_frequent(pieces))


def overlapping(pieces, pair):
    """Joins aaa to aa, aa: a piece is used twice."""
    joined, used = [], False
    for k, piece in enumerate(pieces):
        if tuple(pieces[k : k + 2]) == pair:
            joined.append("".join(pair))
            used = True
        elif not used or (pieces[k - 1], piece) != pair:
            joined.append(piece)
    return joined


def keeps_second(pieces, pair):
    """Writes the joined piece but goes on with the second half of the pair."""
    joined = []
    for k, piece in enumerate(pieces):
        joined.append("".join(pair) if tuple(pieces[k : k + 2]) == pair else piece)
    return joined


def first_only(pieces, pair):
    for k in range(len(pieces) - 1):
        if tuple(pieces[k : k + 2]) == pair:
            return [*pieces[:k], "".join(pair), *pieces[k + 2 :]]
    return list(pieces)


def from_the_right(pieces, pair):
    """All of it written backwards, merged, and turned round again."""
    backwards = merge_pair([piece[::-1] for piece in pieces[::-1]], (pair[1][::-1], pair[0][::-1]))
    return [piece[::-1] for piece in backwards[::-1]]


def replaced_in_text(pieces, pair):
    return " ".join(pieces).replace(" ".join(pair), "".join(pair)).split(" ")


# --- Rows and RoPE ---


def table_cases(rng):
    for v, d, t in ((7, 4, 5), (9, 11, 3), (5, 3, 8)):
        yield torch.randn(v, d), torch.randint(min(v, d), (t,))


def rope_cases(rng):
    for t, d_k in ((5, 8), (7, 12)):
        yield torch.randn(t, d_k), torch.arange(3, 3 + t)


def angles(positions, d, slower: float = 2.0):
    return positions[:, None] * 10_000.0 ** (-slower * torch.arange(d // 2) / d)  # (T, d / 2)


def turned(x, angle):
    return rotate(x, angle.cos(), angle.sin())


def neighbours(x, positions):
    """Rotates the pairs (0, 1), (2, 3), …"""
    angle = angles(positions, x.shape[-1])
    first, second = x[..., ::2], x[..., 1::2]
    both = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
    return torch.stack(both, dim=-1).flatten(-2)


EXERCISES = [
    Exercise(
        "most_frequent_pair",
        reference=most_frequent,
        cases=piece_cases,
        mistakes={
            "this takes the least frequent pair": lambda pieces: min(
                Counter(pairwise(pieces)).items(), key=lambda item: item[1]
            )[0],
            "this counts every second pair only: (0, 1), (2, 3) …; count (1, 2) too": every_second_pair,
            "this is the pair with its count: take `[0]` of it": lambda pieces: (
                most_frequent(pieces),
                max(Counter(pairwise(pieces)).values()),
            ),
            "the pair is joined: return the two pieces as a tuple": lambda pieces: "".join(most_frequent(pieces)),
            "this counts in the joined text, inside longer pieces too: compare whole pieces": counted_in_text,
            "this returns the count; return the pair": lambda pieces: max(Counter(pairwise(pieces)).values()),
            "this returns the most frequent piece, not a pair of neighbours": lambda pieces: Counter(
                pieces
            ).most_common(1)[0][0],
        },
        signs={"of equally frequent pairs this takes another than the first in the text": is_as_frequent},
    ),
    Exercise(
        "merge",
        reference=lambda pieces, pair: list(merge_pair(pieces, pair)),
        cases=merge_cases,
        mistakes={
            "a piece is used twice: a, a, a holds the pair (a, a) only once": overlapping,
            "the second half of the pair is still there: skip it after a merge": keeps_second,
            "this merges the first occurrence only": first_only,
            "this merges from right to left: the leftmost pair comes first": from_the_right,
            "joining the text and replacing also hits the end of a longer piece: compare whole pieces": (
                replaced_in_text
            ),
            "this removes the pair instead of joining it": lambda pieces, pair: [
                piece for piece in merge_pair(pieces, pair) if piece != "".join(pair)
            ],
        },
        praise="With these two functions and a loop you have a tokenizer's training.",
    ),
    Exercise(
        "embed",
        reference=lambda table, ids: F.embedding(ids, table),
        cases=table_cases,
        mistakes={
            "these are columns of the table; token i selects row i": lambda table, ids: table.T[ids],
            "these are the first T rows, whatever the ids": lambda table, ids: table[
                torch.arange(len(ids)) % len(table)
            ],
            "these are the one-hot vectors; multiply them by the table": lambda table, ids: F.one_hot(
                ids, len(table)
            ).float(),
            "rows and columns of the result are swapped: one row per token": lambda table, ids: table[ids].T,
        },
        praise="T ids have become the T × d matrix X.",
    ),
    Exercise(
        "rope",
        reference=lambda x, positions: rotate(x, *rotation(positions, x.shape[-1])),
        cases=rope_cases,
        mistakes={
            "clockwise. The first number should be a·cos − b·sin, the second b·cos + a·sin": lambda x, positions: (
                turned(x, -angles(positions, x.shape[-1]))
            ),
            "all pairs turn at the same speed; pair i turns by 10,000^(−2i / d_k) per position": lambda x, positions: (
                turned(x, positions[:, None].float().expand(-1, x.shape[-1] // 2))
            ),
            "the exponent is −2i / d_k; this has −i / d_k": lambda x, positions: turned(
                x, angles(positions, x.shape[-1], 1.0)
            ),
            "i counts from 0: the first pair turns by one radian per position": lambda x, positions: turned(
                x, angles(positions, x.shape[-1]) * 10_000.0 ** (-2 / x.shape[-1])
            ),
            "positions 0, 1, 2 … are turned, not the given ones": lambda x, positions: turned(
                x, angles(torch.arange(len(positions)), x.shape[-1])
            ),
            "the angles are in radians already: no factor π / 180": lambda x, positions: turned(
                x, angles(positions, x.shape[-1]).deg2rad()
            ),
            "this pairs neighbours; here number i is paired with number i + d_k / 2": neighbours,
            "the positions are not used: token m turns m times as far as token 1": lambda x, positions: turned(
                x, angles(torch.ones_like(positions), x.shape[-1])
            ),
        },
        tolerance=1e-4,
        praise="Scores of rows turned so depend on distance alone.",
    ),
]
