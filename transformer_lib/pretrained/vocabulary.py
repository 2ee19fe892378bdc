"""The tokenizer that belongs to a model: a file beside it, or lists in a GGUF file's metadata."""

from __future__ import annotations

import os
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from transformer_lib.pretrained.sentencepiece_file import sentencepiece_model
from transformer_lib.tokenizer import ByteLevelTokenizer, Tokenizer

CONTROL, USER_DEFINED = 3, 4  # token types of a GGUF vocabulary that are found in a text before it is split
LLAMA_3_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    )
)  # fmt: skip


def beside(file: Path):
    """The tokenizer of the one .model file in the folder of `file`."""
    found = sorted(file.parent.glob("*.model"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ValueError(
            f"{file} holds no vocabulary, and there must be one .model file beside it ({names} found); "
            f"name it with load_pretrained(path, tokenizer=…)."
        )
    return Tokenizer.load(found[0])


def in_folder(folder: Path, settings: dict):
    """The tokenizer of a Hugging Face folder; config.json says which ids begin and end a text."""
    for name in ("tokenizer.json", "tokenizer.model"):
        if (folder / name).exists():
            tokenizer = Tokenizer.load(folder / name)
            begin, end = settings.get("bos_token_id"), settings.get("eos_token_id")
            return with_special_ids(tokenizer, begin, end[0] if isinstance(end, list) and end else end)
    raise ValueError(
        f"{folder} has neither tokenizer.json nor tokenizer.model; name one with load_pretrained(path, tokenizer=…)."
    )


def in_gguf(file: Path, fields: dict):
    """The tokenizer in a GGUF file's metadata."""
    for key in ("model", "tokens", "token_type"):
        if f"tokenizer.ggml.{key}" not in fields:
            raise ValueError(f"{file} has no tokenizer.ggml.{key}; name one: load_pretrained(path, tokenizer=…).")
    kind = fields["tokenizer.ggml.model"]
    if kind not in ("gpt2", "llama"):
        raise ValueError(
            f"{file}: the vocabulary is of kind {kind!r}; 'gpt2' and 'llama' can be read, or give a file of its own: "
            f"load_pretrained(path, tokenizer=…)."
        )
    words = splitter(file, fields.get("tokenizer.ggml.pre")) if kind == "gpt2" else None
    try:
        tokenizer = byte_level(fields, words) if kind == "gpt2" else Tokenizer(sentencepiece_model(fields))
    except Exception as error:  # what the two packages raise on damaged lists is not documented
        raise ValueError(f"{file}: its vocabulary is damaged ({error}).") from None
    begin, end = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    return with_special_ids(tokenizer, begin, end)


def byte_level(fields: dict, words: pre_tokenizers.PreTokenizer) -> ByteLevelTokenizer:
    """Byte-level BPE out of its tokens, its merges and the rule that cuts a text into words."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]],
            ignore_merges=fields["tokenizer.ggml.pre"] == "llama-bpe",  # Llama 3: a word that is a token is not cut
        )
    )
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([tokenizers.AddedToken(token, special=kind == CONTROL, normalized=False)])
    return ByteLevelTokenizer(tokenizer)


def splitter(file: Path, words: str):
    """What cuts a text into words before BPE, by llama.cpp's name for it."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words == "gpt-2":
        return gpt2
    if words in ("smollm", "starcoder", "refact", "command-r"):
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if words == "llama-bpe":
        cut = pre_tokenizers.Split(tokenizers.Regex(LLAMA_3_WORDS), "isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ValueError(
        f"{file}: words are cut by the rule {words!r}, which is not known here; give the model's tokenizer.json: "
        f"load_pretrained(path, tokenizer=…)."
    )


def with_special_ids(tokenizer, begin, end):
    """The model's own word on which ids begin and end a text; a tokenizer file may not say it, or say another."""
    if isinstance(begin, int):
        tokenizer.bos_id = begin
    if isinstance(end, int):
        tokenizer.eos_id = end
    return tokenizer


def given(tokenizer):
    """A tokenizer, or the path of one."""
    return Tokenizer.load(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer


def check_fits(tokenizer, vocab_size: int, file: Path) -> None:
    """Refuse a vocabulary whose ids the model has no row for. A model may have more rows than there are ids."""
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"{file}: the tokenizer has {tokenizer.vocab_size} ids and the model {vocab_size} rows; "
            f"they do not belong together."
        )
