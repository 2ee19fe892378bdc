"""A sentencepiece model file out of the lists in a GGUF file: the format is a small protocol buffer, written here."""

from __future__ import annotations

import struct

BPE, BYTE = 2, 6  # a kind of model and a type of piece, in sentencepiece_model.proto


def sentencepiece_model(fields: dict) -> bytes:
    """The bytes of a .model file: pieces with scores and types, BPE, no normalisation of the text."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    scores = fields["tokenizer.ggml.scores"]
    if not len(tokens) == len(scores) == len(kinds):
        raise ValueError(
            f"{len(tokens)} tokens, {len(scores)} scores, {len(kinds)} types: there must be as many of each"
        )
    pieces = b"".join(
        part(1, part(1, token.encode()) + number(2, score) + whole(3, kind))
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
    )
    trainer = whole(3, BPE) + whole(35, BYTE in kinds)
    for id_tag, piece_tag, name in ((40, 45, "unknown"), (41, 46, "bos"), (42, 47, "eos")):
        i = fields.get(f"tokenizer.ggml.{name}_token_id")
        if i is not None and 0 <= i < len(tokens):
            trainer += whole(id_tag, i) + part(piece_tag, tokens[i].encode())
    spaces = part(1, b"identity") + whole(3, bool(fields.get("tokenizer.ggml.add_space_prefix", True))) + whole(4, 0)
    return pieces + part(2, trainer) + part(3, spaces)


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def whole(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(int(value))


def number(tag: int, value: float) -> bytes:
    return varint(tag << 3 | 5) + struct.pack("<f", value)


def part(tag: int, content: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(content)) + content
