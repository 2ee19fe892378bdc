"""Writing stories, learning a vocabulary from them and encoding them."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_lib import corpus
from transformer_lib.bench.report import Row, rate_row, seconds_row
from transformer_lib.bench.timing import in_turns
from transformer_lib.tokenizer import Tokenizer

STORIES_BAR, VOCABULARY_BAR = 2.0, 3.0  # seconds, for 2 MB
ENCODING_BAR = 0.95  # times sentencepiece's own speed, but for the noise
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
        yield seconds_row(times[what], section="tokenizer", case=size, what=what, bar=bar * scale, at_most=True)
    own, alone = times["encoding"], times["encoding, sentencepiece alone"]
    where = {"section": "tokenizer", "case": size}
    yield rate_row(own, n_bytes / 1e6, "MB/s", **where, what="encoding")
    what, ratio = "encoding, sentencepiece alone", alone.over(own)
    yield rate_row(alone, n_bytes / 1e6, "MB/s", **where, what=what, ratio=ratio, bar=ENCODING_BAR)
