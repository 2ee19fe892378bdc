"""Byte-pair encoding in the open (Sennrich et al. 2016): count the pairs, merge the most frequent one, repeat.

This is the part of a tokenizer that is learnt, to be read and watched. `tokenizer.Tokenizer` does the same fast, and
adds what a real vocabulary needs: bytes for rare characters, and ids.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable

SPACE = "▁"  # a space is written so inside a piece, and belongs to the word after it
WORD = re.compile(r" ?[^\W\d_]+| ?[^\w\s]+|\s|\d|_")  # letters or signs, with the space before them; a digit alone

Pair = tuple[str, str]
Pieces = tuple[str, ...]


def split_words(text: str) -> list[str]:
    """The words of `text` in order, each with the space before it as ▁: no piece ever crosses from one to the next."""
    return [word.replace(" ", SPACE) for word in WORD.findall(text)]


def count_pairs(words: dict[Pieces, int]) -> Counter[Pair]:
    """How often each pair of neighbouring pieces occurs. words: {pieces of a word: how often the word occurs}."""
    pairs: Counter[Pair] = Counter()
    for pieces, count in words.items():
        for pair in itertools.pairwise(pieces):
            pairs[pair] += count
    return pairs


def merge_pair(pieces: Iterable[str], pair: Pair) -> Pieces:
    """The same pieces with every occurrence of the pair joined, from left to right: "aaa" gives "aa", "a"."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)


def learn_merges(text: str, n_merges: int) -> list[tuple[Pair, int]]:
    """Up to `n_merges` merges in the order in which they are learnt: (the pair, how often it occurred then).

    Of pairs that occur equally often the one that stands first in the text is taken. Ends early when all words are
    single pieces.
    """
    words = {tuple(word): count for word, count in Counter(split_words(text)).items()}
    merges: list[tuple[Pair, int]] = []
    while len(merges) < n_merges and (pairs := count_pairs(words)):
        pair, count = max(pairs.items(), key=lambda item: item[1])
        merges.append((pair, count))
        words = {merge_pair(pieces, pair): n for pieces, n in words.items()}
    return merges


def apply_merges(text: str, merges: Iterable[Pair]) -> list[str]:
    """Cut `text` with merges learnt before, each applied in turn."""
    words = [tuple(word) for word in split_words(text)]
    for pair in merges:
        words = [merge_pair(pieces, pair) for pieces in words]
    return [piece for pieces in words for piece in pieces]
