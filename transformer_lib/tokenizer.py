"""Text to token ids and back: byte-pair encoding (Sennrich et al. 2016) with byte fallback, nothing lost.

`Tokenizer` wraps sentencepiece (Kudo and Richardson 2018). A vocabulary that `Tokenizer.train` learns keeps the text
exactly as it is: no Unicode normalisation, no added or folded spaces, no dropped control characters, so that
`decode(encode(text)) == text` for every string that UTF-8 can hold.

- Characters outside the vocabulary are spelt by their UTF-8 bytes, pieces such as `<0xF0>`.
- A newline is always one token, and no piece crosses one: the lines of a text are encoded independently, so
  `encode(a + "\\n" + b) == encode(a) + encode("\\n") + encode(b)`. Elsewhere `encode(a) + encode(b)` decodes to
  `a + b`, but may be longer than `encode(a + b)`.
- A space is written `▁` (U+2581) inside a piece and belongs to the word after it. A `▁` of the text itself is spelt
  by its bytes, so the two are never mixed up.
- Digits are single tokens, as in Llama: "2024" is four.

Vocabularies made elsewhere (Llama's, with a space put before the text) load too and give the ids their models expect.
"""

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

SPACE = "\u2581"  # how sentencepiece writes a space inside a piece
TRAINING_BYTES = 8_000_000  # more text hardly changes the merges; lines are then taken evenly from the whole
LINE_CHARACTERS = 1_000  # sentencepiece drops training lines above 4,192 bytes; a character has at most four


class Tokenizer:
    """A sentencepiece vocabulary. Make one with `Tokenizer.train(text, vocab_size)` or `Tokenizer.load(path)`.

    `vocab_size`, `bos_id`, `eos_id` and `unk_id` are numbers; an id is None where the vocabulary has no such piece.
    """

    def __init__(self, model: bytes):
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size: int = self._processor.vocab_size()
        special = (self._processor.bos_id(), self._processor.eos_id(), self._processor.unk_id())
        self.bos_id, self.eos_id, self.unk_id = (i if i >= 0 else None for i in special)
        self._adds_space = self._processor.encode("a", out_type=str)[0].startswith(SPACE)
        keeps_spaces = self._processor.encode("  a  ", out_type=str)
        self._lossless = "".join(keeps_spaces) == f"{SPACE * 2}a{SPACE * 2}" and "<0xE2>" in self
        self._space_sign = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]

    @classmethod
    def train(cls, text: str, vocab_size: int) -> "Tokenizer":
        """Learn a vocabulary of exactly `vocab_size` pieces from `text`; the same text gives the same bytes.

        Raises ValueError, with the largest or smallest possible size, where the text cannot give one of this size.
        """
        refuse_surrogates(text)
        lines = training_lines(text)
        if not any(line.strip() for line in lines):
            raise ValueError("The text is empty, so there is nothing to learn a vocabulary from: give some words.")
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type="bpe",
                # Fewer than 256 cannot be, nor can more than one piece per character; the error then names the bound.
                vocab_size=min(max(vocab_size, 256), len(text) + 1_000),
                byte_fallback=True,
                character_coverage=0.9995,  # the rarest characters are left to the bytes
                normalization_rule_name="identity",
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                split_digits=True,
                user_defined_symbols=["\n"],
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(explain(str(error), vocab_size)) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer | ByteLevelTokenizer":
        """Read a sentencepiece `.model` file, or a `tokenizer.json` (then a `ByteLevelTokenizer`)."""
        path = Path(path)
        if path.suffix == ".json":
            return ByteLevelTokenizer.load(path)
        model = read_bytes(path)
        try:
            return cls(model)
        except (RuntimeError, IndexError):
            raise ValueError(f"{path} is no sentencepiece model, or it is damaged: copy or train it again.") from None

    def save(self, path: str | os.PathLike) -> None:
        """Write the vocabulary to `path`: whole, or not at all."""
        write_whole(Path(path), self._model)

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """The ids of `text`, after the beginning-of-sequence id if `bos`."""
        refuse_surrogates(text)
        ids = [require(self.bos_id, "beginning-of-sequence")] if bos else []
        if not self._lossless:
            return ids + self._processor.encode(text)
        for i, part in enumerate(text.split(SPACE)):
            ids += self._space_sign * (i > 0) + self._processor.encode(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids give no text; bytes that are not UTF-8 give U+FFFD."""
        return self._processor.decode(in_range(ids, self.vocab_size))

    def pieces(self, text: str) -> list[str]:
        """The pieces of `text` as the vocabulary writes them: "▁the" for " the", "<0xC3>" for a byte."""
        return [self._processor.id_to_piece(i) for i in self.encode(text)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each piece lies in `text`: (start, end) in characters. All bytes of a character have its span."""
        spans, at, left = [], -int(self._adds_space and text != ""), 0
        for i in self.encode(text):
            if not self._processor.is_byte(i):
                start, at = at, at + len(self._processor.id_to_piece(i))
                spans.append((max(start, 0), max(at, 0)))
                continue
            if left == 0:
                left, at = len(text[at].encode()), at + 1
            left -= 1
            spans.append((at - 1, at))
        return spans

    def __contains__(self, piece: str) -> bool:
        return self._processor.id_to_piece(self._processor.piece_to_id(piece)) == piece


class ByteLevelTokenizer:
    """Byte-level BPE (Radford et al. 2019) from a `tokenizer.json`, as GPT-2 and SmolLM2 have it. Same methods."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size()
        ends = [tokenizer.token_to_id(name) for name in ("<|endoftext|>", "</s>")]
        self.bos_id = self.eos_id = next((i for i in ends if i is not None), None)
        self.unk_id = None  # every byte has a token

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ByteLevelTokenizer":
        import tokenizers

        text = read_bytes(Path(path))
        try:
            return cls(tokenizers.Tokenizer.from_str(text.decode()))
        except Exception:  # the library raises bare Exception
            raise ValueError(f"{path} is not a tokenizer.json, or it is damaged: copy it again.") from None

    def save(self, path: str | os.PathLike) -> None:
        write_whole(Path(path), self._tokenizer.to_str().encode())

    def encode(self, text: str, bos: bool = False) -> list[int]:
        ids = [require(self.bos_id, "beginning-of-sequence")] if bos else []
        return ids + self._encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(in_range(ids, self.vocab_size), skip_special_tokens=False)

    def pieces(self, text: str) -> list[str]:
        return self._encode(text).tokens

    def spans(self, text: str) -> list[tuple[int, int]]:
        return self._encode(text).offsets

    def _encode(self, text: str):
        refuse_surrogates(text)
        return self._tokenizer.encode(text, add_special_tokens=False)


def training_lines(text: str) -> list[str]:
    """Lines of `text` of a length that sentencepiece takes, without the two signs it refuses; thinned if huge."""
    lines = [line for line in re.split(f"[\n\0{SPACE}]", text) if line]
    kept = lines[:: 1 + len(text) // TRAINING_BYTES]
    return [line[at : at + LINE_CHARACTERS] for line in kept for at in range(0, len(line), LINE_CHARACTERS)]


def explain(error: str, vocab_size: int) -> str:
    """One sentence for what sentencepiece says about a vocabulary size."""
    if largest := re.search(r"value <= (\d+)", error):
        return (
            f"A vocabulary of {vocab_size} is too large for this text, which gives at most {largest[1]} pieces: "
            f"ask for {largest[1]} or fewer, or give more text."
        )
    if smallest := re.search(r"required_chars\. -?\d+ vs (\d+)", error):
        return (
            f"A vocabulary of {vocab_size} is too small: the 256 bytes, the special pieces and this text's characters "
            f"need {smallest[1]}: ask for {smallest[1]} or more."
        )
    return f"No vocabulary of {vocab_size} pieces could be learnt from this text ({error.strip()}): try another size."


def refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Character {error.start} of the text, {text[error.start]!r}, is half a surrogate pair and no character: "
            'read the text as UTF-8, or replace such halves with text.encode("utf-8", "replace").decode().'
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"The tokenizer file {path} cannot be read ({error.strerror}).") from None
    if not content:
        raise ValueError(f"The tokenizer file {path} is empty: copy or train it again.")
    return content


def in_range(ids: Iterable[int], vocab_size: int) -> list[int]:
    ids = [int(i) for i in ids]
    if wrong := [i for i in ids if not 0 <= i < vocab_size]:
        raise ValueError(f"Token id {wrong[0]} is not in the vocabulary, whose ids are 0 to {vocab_size - 1}.")
    return ids


def require(special_id: int | None, name: str) -> int:
    if special_id is None:
        raise ValueError(f"This vocabulary has no {name} piece, so encode(bos=True) cannot add one.")
    return special_id
