"""Writing stories, learning a vocabulary from them and encoding them."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_lib import corpus
from transformer_lib.bench.report import Row
from transformer_lib.bench.timing import in_turns
from transformer_lib.tokenizer import Tokenizer

STORIES_BAR, VOCABULARY_BAR, ENCODING_BAR = 2.0, 3.0, 1.0  # seconds, seconds, times sentencepiece's own speed
VOCABULARY = 1024


def run(options) -> Iterator[Row]:
    """options: .quick, .rounds, .clock."""
    n_bytes = 200_000 if options.quick else 2_000_000
    size, scale = f"{n_bytes / 1e6:g} MB", n_bytes / 2_000_000  # the bars are for 2 MB
    text = corpus.story_text(n_bytes)
    tokenizer = Tokenizer.train(text, VOCABULARY)
    plain = tokenizer._processor  # sentencepiece's own, to which ours adds checks and the exact round trip
    times = in_turns(
        {
            "writing stories": lambda: corpus.story_text(n_bytes),
            "learning a vocabulary": lambda: Tokenizer.train(text, VOCABULARY),
            "encoding": lambda: tokenizer.encode(text),
            "encoding, sentencepiece alone": lambda: plain.encode(text),
        },
        min(options.rounds, 3),
        options.clock,
    )
    for what, bar in (("writing stories", STORIES_BAR), ("learning a vocabulary", VOCABULARY_BAR)):
        seconds = times[what].seconds
        yield Row(section="tokenizer", case=size, what=what, value=times[what].median, low=min(seconds),
                  high=max(seconds), unit="s", bar=bar * scale, at_most=True)  # fmt: skip
    own, alone = times["encoding"], times["encoding, sentencepiece alone"]
    for what, time in (("encoding", own), ("encoding, sentencepiece alone", alone)):
        value, low, high = time.rate(n_bytes / 1e6)
        mine = time is own
        yield Row(section="tokenizer", case=size, what=what, value=value, low=low, high=high, unit="MB/s",
                  ratio=None if mine else alone.over(own), bar=None if mine else 0.95 * ENCODING_BAR)  # fmt: skip
