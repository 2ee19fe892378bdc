"""A small language to translate into, for the encoder-decoder of 2017: every right answer is known, word by word.

    the small cat sees a red ball   ->   sa mira pita no balo rudo tolata

English goes in; out comes a language of our own that differs in three ways, all of which a translator must learn:

- Order: adjectives follow their noun, the nearest first; an adverb stands before the verb; the verb comes last.
- Words: each word has one translation, "cat" -> "mira".
- Agreement: each noun belongs to a class (-a, -o or -u). Its determiner and adjectives take that ending, and the verb
  takes the subject's: "small" is pita, pito or pitu. So one word of the source does not decide a word of the target.

Each target word translates one source word: that is the alignment that cross-attention should find.
"""

from __future__ import annotations

import random
import zlib
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.generation import generate
from transformer_lib.losses import cross_entropy
from transformer_lib.model import EncoderDecoder
from transformer_lib.recording import record
from transformer_lib.training import TrainConfig


def dictionary(text: str) -> dict[str, str]:
    return dict(entry.split(":") for entry in text.split())


DETERMINERS = dictionary("the:s a:n every:vek")
ADJECTIVES = dictionary(
    "small:pit big:grand old:vet red:rud blue:blav green:verd quiet:kalm round:rond warm:varm bright:klar"
)
VERBS = dictionary(
    "sees:tolat finds:trovat takes:prenat likes:amat draws:desat carries:portat follows:sekvat paints:pintat"
)
NOUNS = dictionary(
    "cat:mira dog:bruna bird:fila fish:osa fox:zelta bear:gorma tree:alda ball:balo boat:navo book:libro house:kaso "
    "stone:petro lamp:lumo river:rivo star:stelu flower:floru apple:pomu door:portu cup:tasu drum:tamu"
)
ADVERBS = dictionary("today:hodi often:ofte never:neni slowly:lent here:tie")
KINDS = {"determiner": DETERMINERS, "adjective": ADJECTIVES, "verb": VERBS, "noun": NOUNS, "adverb": ADVERBS}
STEMS = DETERMINERS | ADJECTIVES | VERBS  # what takes an ending
ENDINGS = "aou"
MEANING = {word: source for source, word in (NOUNS | ADVERBS).items()}
MEANING |= {stem + ending: source for source, stem in STEMS.items() for ending in ENDINGS}
PAD, START, END = 0, 1, 2
SOURCE_WORDS = [word for words in KINDS.values() for word in words]
TARGET_WORDS = [*NOUNS.values(), *ADVERBS.values(), *(stem + ending for stem in STEMS.values() for ending in ENDINGS)]
VOCABULARY = ["<pad>", "<start>", "<end>", *SOURCE_WORDS, *TARGET_WORDS]
ID = {word: i for i, word in enumerate(VOCABULARY)}

# The model of 2017 in small: post-norm LayerNorm, ReLU, sinusoids, one embedding for everything, scaled by √d_model.
MODEL = TransformerConfig(
    vocab_size=len(VOCABULARY), d_model=64, n_layers=2, n_encoder_layers=2, n_heads=4, d_ff=128, max_seq_len=32,
    positions="sinusoidal", norm="layernorm", norm_position="post", activation="relu", bias=True,
    tie_embeddings=True, embedding_scale=True,
)  # fmt: skip
# Warm-up as in the paper (section 5.3); then the rate falls to zero along a cosine. The paper's 1 / √step is, after
# these few steps, still so high that now and then a word goes wrong (measured: 97 to 100% of sentences right).
TRAINING = TrainConfig(
    steps=700, batch_size=64, learning_rate=3e-3, warmup_steps=100, weight_decay=0.0, betas=(0.9, 0.98), threads=1,
)  # fmt: skip
LABEL_SMOOTHING = 0.1


class Pair(NamedTuple):
    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: tuple[int, ...]  # for each target word, the place of the source word that it translates


class Batch(NamedTuple):
    """Pairs as ids: a source ends with <end>, a target begins with <start> and ends with <end>. Padded on the right."""

    source: Tensor  # (B, S) int64
    source_mask: Tensor  # (B, S) bool, True = a real token
    target: Tensor  # (B, T + 1) int64
    target_mask: Tensor  # (B, T + 1) bool
    alignment: Tensor  # (B, T) int64: where the word predicted at this position stands in the source; −1 = nowhere


def translate(sentence: str) -> Pair:
    """The one right translation of a sentence: [adverb] phrase verb phrase, a phrase being determiner adjective* noun.

    Raises ValueError, naming the word, for any other sentence.
    """
    words = sentence.split()
    at = 1 if words and words[0] in ADVERBS else 0
    adverb = range(at)
    subject, verb = noun_phrase(words, at)
    expect(words, verb, "verb")
    object_, end = noun_phrase(words, verb + 1)
    if end < len(words):
        raise ValueError(f"the sentence should end before word {end + 1}, {words[end]!r}.")
    order = [*subject, *object_, *adverb, verb]
    own = {place: phrase[1] for phrase in (subject, object_) for place in phrase} | {verb: subject[1]}
    target = tuple(inflect(words[place], words[own[place]] if place in own else None) for place in order)
    return Pair(tuple(words), target, tuple(order))


def noun_phrase(words: list[str], at: int) -> tuple[list[int], int]:
    """The places of determiner, noun and adjectives, the nearest to the noun first; and where the phrase ends."""
    expect(words, at, "determiner")
    noun = at + 1
    while noun < len(words) and words[noun] in ADJECTIVES:
        noun += 1
    expect(words, noun, "noun")
    return [at, noun, *range(noun - 1, at, -1)], noun + 1


def translate_back(sentence: str) -> Pair:
    """The pair that a sentence of the other language belongs to: the inverse of `translate`.

    Raises ValueError, naming the word, where a word is unknown, out of place, or ends as its noun does not.
    """
    words = [MEANING.get(word, word) for word in sentence.split()]
    subject, at = phrase_backwards(words, 0)
    object_, at = phrase_backwards(words, at)
    adverb = [at] if at < len(words) and words[at] in ADVERBS else []
    verb = at + len(adverb)
    expect(words, verb, "verb")
    if verb + 1 < len(words):
        raise ValueError(f"the sentence should end before word {verb + 2}, {sentence.split()[verb + 1]!r}.")
    pair = translate(" ".join(words[place] for place in [*adverb, *subject, verb, *object_]))
    for got, right in zip(sentence.split(), pair.target, strict=True):
        if got != right:
            raise ValueError(f"{got!r} should be {right!r}: words end as the noun does that they belong to.")
    return pair


def phrase_backwards(words: list[str], at: int) -> tuple[list[int], int]:
    """Where determiner, adjectives and noun stand, in the source's order; and where the phrase ends."""
    expect(words, at, "determiner")
    expect(words, at + 1, "noun")
    end = at + 2
    while end < len(words) and words[end] in ADJECTIVES:
        end += 1
    return [at, *range(end - 1, at + 1, -1), at + 1], end


def expect(words: list[str], at: int, kind: str) -> None:
    if at >= len(words) or words[at] not in KINDS[kind]:
        got = repr(words[at]) if at < len(words) else "the end"
        raise ValueError(f"word {at + 1} should be one of the {kind}s {', '.join(KINDS[kind])}; got {got}.")


def inflect(word: str, noun: str | None) -> str:
    """The target word: determiners, adjectives and verbs take the ending of the noun that they belong to."""
    if word in STEMS:
        return STEMS[word] + NOUNS[noun][-1]
    return NOUNS.get(word) or ADVERBS[word]


def draw_pairs(n: int, seed: int = 0, held_out: bool = False) -> list[Pair]:
    """`n` random pairs. A sentence belongs to the held-out eighth or to the rest by its own checksum: never to both."""
    rng, pairs = random.Random(seed), []
    while len(pairs) < n:
        sentence = draw_sentence(rng)
        if (zlib.crc32(sentence.encode()) % 8 == 0) == held_out:
            pairs.append(translate(sentence))
    return pairs


def draw_sentence(rng: random.Random) -> str:
    """A sentence of the source language, with or without an adverb, with up to two different adjectives per noun."""

    def phrase() -> list[str]:
        adjectives = rng.sample(list(ADJECTIVES), rng.randrange(3))
        return [rng.choice(list(DETERMINERS)), *adjectives, rng.choice(list(NOUNS))]

    adverb = [rng.choice(list(ADVERBS))] if rng.random() < 0.5 else []
    return " ".join([*adverb, *phrase(), rng.choice(list(VERBS)), *phrase()])


def encode(pairs: list[Pair]) -> Batch:
    """Pairs as one padded batch."""
    sources = [[*(ID[word] for word in pair.source), END] for pair in pairs]
    targets = [[START, *(ID[word] for word in pair.target), END] for pair in pairs]
    alignments = [[*pair.alignment, -1] for pair in pairs]
    source, target, alignment = pad(sources, PAD), pad(targets, PAD), pad(alignments, -1)
    return Batch(source, source != PAD, target, target != PAD, alignment)


def pad(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])  # (B, longest)


def decode(ids) -> str:
    """The words of a row of ids, up to <end>, without the special ones."""
    ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    ids = ids[: ids.index(END)] if END in ids else ids
    return " ".join(VOCABULARY[i] for i in ids if i > END)


def translation_batches(step: int, config: TrainConfig) -> Batch:
    """Fresh pairs for every step: the training set is all that is not held out."""
    return encode(draw_pairs(config.batch_size, seed=int(torch.randint(2**62, ()))))


def translation_loss(model: EncoderDecoder, batch) -> Tensor:
    """Cross-entropy per target token; smoothed while training (Vaswani et al., 2017, section 5.4)."""
    source, source_mask, target, target_mask, _ = batch
    logits = model(source, target[:, :-1], source_mask, target_mask[:, :-1])  # (B, T, V)
    smoothing = LABEL_SMOOTHING if model.training else 0.0
    return cross_entropy(logits, target[:, 1:], target_mask[:, 1:], smoothing)


def new_translator(seed: int = 0) -> EncoderDecoder:
    """An untrained translator. Its embeddings start at 1 / √d_model: scaled, they are as large as the positions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(MODEL)
        model.initialize(std=MODEL.d_model**-0.5)
    return model


@torch.inference_mode()
def translate_with(model: EncoderDecoder, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
    """Greedy translations, (B, T) int64, each up to and with <end>, which is repeated. source: (B, S)."""
    start = torch.full((len(source), 1), START)
    stop = {"max_new_tokens": MODEL.max_seq_len - 1, "stop_ids": [END]}
    return generate(model, start, source=source, source_mask=source_mask, **stop)[:, 1:]


def accuracy(model: EncoderDecoder, pairs: list[Pair]) -> float:
    """The share of sentences that greedy decoding translates without a single fault."""
    batch = encode(pairs)
    written = translate_with(model, batch.source, batch.source_mask)
    return sum(decode(row) == " ".join(pair.target) for row, pair in zip(written, pairs, strict=True)) / len(pairs)


@torch.no_grad()
def alignment_scores(model: EncoderDecoder, pairs: list[Pair]) -> Tensor:
    """How much cross-attention each head gives to the source word that is being translated: (L, H), from 0 to 1.

    The mean over all target words of the weight on the right source word, at the position that predicts the word.
    """
    batch = encode(pairs)
    with record(model) as seen:
        model(batch.source, batch.target[:, :-1], batch.source_mask, batch.target_mask[:, :-1])
    layers = [seen[f"blocks.{i}.cross_attention.weights"] for i in range(model.cfg.n_layers)]
    weights = torch.stack(layers, dim=1)  # (B, L, H, T, S)
    right = batch.alignment.clamp(min=0)[:, None, None, :, None].expand(*weights.shape[:4], 1)  # (B, L, H, T, 1)
    on_right = weights.gather(-1, right).squeeze(-1)  # (B, L, H, T)
    counts = (batch.alignment >= 0)[:, None, None]  # (B, 1, 1, T)
    return (on_right * counts).sum(dim=(0, 3)) / counts.sum()  # (L, H)


def chance_alignment(pairs: list[Pair]) -> float:
    """The score of attention that is spread evenly over the source, its <end> included."""
    return sum(len(pair.target) / (len(pair.source) + 1) for pair in pairs) / sum(len(pair.target) for pair in pairs)
