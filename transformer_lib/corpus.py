"""What the course's models read: stories, repeated symbols, and any text file.

**Stories** come from a probabilistic grammar of our own (words in `grammar.py`, plots in `story_plots.py`, told by
`storyteller.py`), seeded, in any amount. Names, things and lists come again, pronouns follow their owner, quotation
marks close, causes have effects: attention has something to find. The grammar knows how probable each story is; −ln p,
in nats, is the story's information, and

    bound = sum of story.information / number of tokens (the newline that ends each story counts as one)

is the loss per token that no model can beat on average over fresh stories: it is the entropy of the source, estimated
from those stories. On a finite sample a model may by luck go slightly below it, and one that has memorised the very
stories it is tested on may go far below. The number depends on the tokenizer, because the same information is
spread over its tokens. A model with a context shorter than the stories, or windows that start inside a story, has less
to go by, so its best possible loss is higher.

**Seeds.** Training stories use small seeds (0, 1, 2 …), fresh ones `FRESH_SEED` + 0, 1, 2 …: never the same stream.
"""

import codecs
import os
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from transformer_lib.storyteller import Mark, Story, Teller, derivations

__all__ = [
    "FRESH_SEED",
    "Mark",
    "Repeated",
    "Story",
    "fresh_stories",
    "information",
    "pydoc_text",
    "read_text",
    "repeated_sequences",
    "stories",
    "story_text",
]

FRESH_SEED = 1_000_000


def stories(n_stories: int | None = None, n_bytes: int | None = None, seed: int = 0) -> list[Story]:
    """`n_stories` stories, or as many whole ones as make at least `n_bytes` of text, newlines counted."""
    if (n_stories is None) == (n_bytes is None):
        raise ValueError("Say either how many stories (n_stories) or how much text (n_bytes) you want, not both.")
    rng, told, size = random.Random(seed), [], 0
    while len(told) < n_stories if n_bytes is None else size < n_bytes:
        told.append(Teller(rng).tell())
        size += len(told[-1].text) + 1
    return told


def fresh_stories(n_stories: int, seed: int = 0) -> list[Story]:
    """Stories for testing, from a stream that no training text uses."""
    return stories(n_stories, seed=FRESH_SEED + seed)


def story_text(n_bytes: int, seed: int = 0) -> str:
    """At least `n_bytes` of stories, each on a line of its own that a newline ends. It is plain ASCII."""
    return "".join(story.text + "\n" for story in stories(n_bytes=n_bytes, seed=seed))


def information(text: str) -> float:
    """−ln p of a text of whole stories, in nats, found by parsing it. ValueError names the first line that is none."""
    total = 0.0
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        story = next(derivations(line), None)
        if story is None:
            raise ValueError(f"Line {number} is not a story of the grammar ({line[:60]!r}), so its probability is 0.")
        total += story.information
    return total


class Repeated(NamedTuple):
    """Rows of repeated symbols, and where each one shows what comes next; all (n, length)."""

    ids: torch.Tensor  # int64
    predictable: torch.Tensor  # bool: the symbol here has occurred a period ago, so the next one is known
    earlier: torch.Tensor  # int64: where it stood then, plus one: the position an induction head attends to


def repeated_sequences(n: int, length: int, vocab_size: int, seed: int = 0) -> Repeated:
    """`n` rows of random symbols that repeat: the task that makes induction heads (Olsson et al. 2022).

    Each row draws a period between length/4 and length/2, then so many symbols, and repeats them until it is full. Only
    a model that finds the earlier occurrence of a symbol can say what comes next: the period differs from row to row,
    so that looking back by a fixed distance does not do. Positions that are not predictable have `earlier` 0.
    """
    if n < 1 or length < 8 or vocab_size < 2:
        raise ValueError(
            f"repeated_sequences needs n ≥ 1, length ≥ 8 and vocab_size ≥ 2, not {n}, {length} and {vocab_size}."
        )
    rng = np.random.default_rng(seed)
    at = np.arange(length)
    period = rng.integers(length // 4, length // 2 + 1, size=(n, 1))  # (n, 1)
    symbols = rng.integers(vocab_size, size=(n, length // 2))  # (n, length // 2)
    ids = np.take_along_axis(symbols, at % period, axis=1)  # (n, length)
    predictable = (at >= period) & (at < length - 1)  # (n, length)
    earlier = np.where(predictable, at - period + 1, 0)  # (n, length)
    return Repeated(*(torch.from_numpy(array) for array in (ids, predictable, earlier)))


def read_text(path: str | os.PathLike, min_characters: int = 1, max_bytes: int = 500_000_000) -> str:
    """The text of a UTF-8 (or marked UTF-16) file, without its byte order mark, all lines ending in "\\n".

    Raises ValueError, in one sentence, for a file that is missing, empty or too short, too large, or not text.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ValueError(
                f"{path} has {size:,} bytes, more than the {max_bytes:,} that are read into memory: give a part of it."
            )
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"The text file {path} cannot be read ({error.strerror}).") from None
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start:,} is wrong): it is binary or in another encoding; "
            "open it in an editor and save it as UTF-8."
        ) from None
    if "\0" in text:
        raise ValueError(f"{path} holds NUL characters, so it is a binary file and no text: give a text file.")
    text = text.replace("\r\n", "\n")
    if len(text) < min_characters or not text.strip():
        raise ValueError(f"{path} is too short: it has {len(text):,} characters and {min_characters:,} are needed.")
    return text


def pydoc_text() -> str:
    """Python's own help topics, about 0.7 MB of real prose that every Python installation has."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
