"""Explorers of notebook 01 on text: merges step by step, typed text as pieces and ids, rows that grew alike."""

import functools
from collections import Counter

import ipywidgets as widgets
import matplotlib
import torch.nn.functional as F

from transformer_lib.bpe import apply_merges, count_pairs, learn_merges, merge_pair, split_words
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable

TINTS = ("#CFE3F2", "#FBE3B3", "#CDEBDD", "#F3D9E8", "#FAD7C2")
LONGEST = 80  # letters for the merges: their pieces fit the page
MOST_TOKENS = 64
MOST_MERGES = 30
NEW = COLOURS["red"]


def chips(drawing: Drawing, parts: list[tuple], top: float, high: float = 28.0) -> float:
    """Words in tinted boxes, in lines of 800 pixels; parts: (word, below, fill, edge, hover). Returns the y below."""
    x, y = 8.0, top
    line = high + (20 if any(below for _, below, *_ in parts) else 0) + 8
    for word, below, fill, edge, hover in parts:
        wide = max(10.5 * len(word) + 12, 9.8 * len(below) + 6)
        if x + wide > 792:
            x, y = 8.0, y + line
        drawing.rect(x, y, wide, high, fill=fill, stroke=edge, hover=hover, radius=4)
        drawing.text(x + wide / 2, y + high / 2, word)
        if below:
            drawing.text(x + wide / 2, y + high + 11, below, colour="#555555")
        x += wide + 4
    return y + line


# --- Merges, one at a time ---


def merge_steps(text: str = "the fox, the ox, the box") -> HtmlExplorer:
    """Byte-pair encoding on a short text: the pieces after each merge, and the pairs that compete for the next."""

    def draw(text, merges):
        typed, note = clip_text(text, longest=LONGEST)
        learnt = learn_merges(typed, MOST_MERGES)
        done = learnt[:merges]
        if merges > len(learnt):
            note += f" (after {len(learnt)} merges every word is one piece or no pair is left)"
        pieces = apply_merges(typed, [pair for pair, _ in done])
        words = Counter(tuple(word) for word in split_words(typed))
        for pair, _ in done:
            words = {merge_pair(word, pair): count for word, count in words.items()}
        pairs = sorted(count_pairs(words).items(), key=lambda item: -item[1])
        coming = f"next: {_shown(pairs[0][0])}, {pairs[0][1]} times" if pairs else "no pair is left"
        summary = f"After {len(done)} merges: {len(pieces)} pieces; {coming}.{note}"
        return _merge_drawing(pieces, done, pairs), summary

    controls = {
        "text": widgets.Text(text, description="text"),
        "merges": widgets.IntSlider(3, 0, MOST_MERGES, description="merges"),
    }
    return HtmlExplorer(draw, controls, title="Count the pairs, merge the most frequent, repeat", name="merge_steps")


def _shown(pair) -> str:
    return " + ".join(readable(piece) for piece in pair)


def _merge_drawing(pieces, done, pairs) -> Drawing:
    """Pieces on top (those of the last merge framed), below them the pairs by count and the merges so far."""
    drawing = Drawing(800, 0)
    last = "".join(done[-1][0]) if done else None
    tint = {piece: TINTS[i % len(TINTS)] for i, piece in enumerate(dict.fromkeys(pieces))}
    parts = [
        (readable(piece), "", tint[piece] if len(piece) > 1 else "#F1F1F1", NEW if piece == last else "none",
         f"{readable(piece)}: {len(piece)} letters, {pieces.count(piece)} times")
        for piece in pieces
    ]  # fmt: skip
    y = chips(drawing, parts, 6) + 14
    drawing.text(8, y, "Pairs now, by how often they occur", anchor="start", bold=True)
    drawing.text(440, y, "Merges so far, the latest first", anchor="start", bold=True)
    most = pairs[0][1] if pairs else 1
    for row, (pair, count) in enumerate(pairs[:7]):
        at = y + 28 + 25 * row
        drawing.text(140, at, _shown(pair), anchor="end")
        drawing.rect(150, at - 9, 200 * count / most, 18, fill=NEW if row == 0 else "#9DB8CC")
        drawing.text(158 + 200 * count / most, at, f"{count}" + (" ← next" if row == 0 else ""), anchor="start")
    for row, (number, (pair, count)) in enumerate(list(enumerate(done, 1))[:-8:-1]):
        at = y + 28 + 25 * row
        words = f"{number}.  {_shown(pair)}  →  {readable(''.join(pair))}"
        drawing.text(440, at, f"{words}   ({count} times)", anchor="start", bold=row == 0)
    drawing.height = y + 28 + 25 * 7
    return drawing


# --- Typed text as pieces and ids ---


def typed_tokens(tokenizers: dict, text: str) -> HtmlExplorer:
    """Any text as coloured pieces with their ids, cut by one of several vocabularies. tokenizers: {size: Tokenizer}."""

    def draw(text, size):
        typed, note = clip_text(text, longest=400)
        tokenizer = tokenizers[size]
        ids, pieces, spans = tokenizer.encode(typed), tokenizer.pieces(typed), tokenizer.spans(typed)
        if len(ids) > MOST_TOKENS:
            note += f" (only the first {MOST_TOKENS} tokens are drawn)"
        drawing = Drawing(800, 0)
        drawing.height = chips(drawing, _token_parts(typed, ids, pieces, spans)[:MOST_TOKENS], 6) + 4
        in_bytes = sum(_is_byte(piece) for piece in pieces)
        back = "decoding gives the text back" if tokenizer.decode(ids) == typed else "decoding changes the text"
        return drawing, (
            f"With {size:,} entries, {len(typed)} letters become {len(ids)} tokens, {in_bytes} of them single bytes "
            f"(framed); {back}.{note}"
        )

    sizes = list(tokenizers)
    controls = {
        "text": widgets.Text(text, description="your text"),
        "size": widgets.SelectionSlider(options=sizes, value=sizes[-1], description="entries of the vocabulary"),
    }
    return HtmlExplorer(draw, controls, title="Your text as tokens: the piece, and its id below", name="typed_tokens")


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x")


def _token_parts(text, ids, pieces, spans) -> list[tuple]:
    """One chip per token; the bytes of one character share a colour and say which character they spell."""
    parts = []
    tint = -1
    for k, (i, piece, span) in enumerate(zip(ids, pieces, spans, strict=True)):
        if k == 0 or span != spans[k - 1]:
            tint += 1
        alone = spans.count(span) == 1  # a byte-level vocabulary may cut a character in two
        word = readable(text[slice(*span)] if alone and not piece.startswith("\u2581") else piece)
        words = f"id {i}: {word}"
        if _is_byte(piece):
            letter = text[slice(*span)]
            word = readable(letter) if letter.isascii() and letter.isprintable() else piece[3:5]
            words = f"id {i}: the byte {piece[1:5]} of {letter!r}, {readable(letter)}"
        parts.append((word, str(i), TINTS[tint % len(TINTS)], NEW if _is_byte(piece) else "none", words))
    return parts


# --- Rows that grew alike ---


def similar_rows(model, before, tokenizer, word: str = " fox") -> HtmlExplorer:
    """The rows of the embedding most like one token's row, in the trained model and before training."""
    tables = {"before training": before.embedding.weight.detach(), "trained": model.embedding.weight.detach()}

    @functools.lru_cache(maxsize=4)
    def nearest(i: int):
        found = {}
        for name, table in tables.items():
            alike = F.cosine_similarity(table[i][None], table)  # (V,)
            values, rows = alike.topk(13)
            found[name] = [(int(row), float(value)) for row, value in zip(rows, values, strict=True) if row != i]
        return found

    def draw(word, rows):
        typed, note = clip_text(word, instead=" fox")
        ids = tokenizer.encode(typed)
        if len(ids) > 1:
            note += f" (this is {len(ids)} tokens: showing the first)"
        drawing = Drawing(800, 44 + 27 * rows)
        name = readable(tokenizer.pieces(typed)[0])
        for column, (title, found) in enumerate(nearest(ids[0]).items()):
            drawing.text(20 + 400 * column, 16, f"{title}: rows like {name}", anchor="start", bold=True)
            for row, (i, value) in enumerate(found[:rows]):
                _bar(drawing, 400 * column, 44 + 27 * row, _piece(tokenizer, i), value)
        best = {title: found[0] for title, found in nearest(ids[0]).items()}
        told = "; ".join(f"{t}: {_piece(tokenizer, i)} ({v:.2f})" for t, (i, v) in best.items())
        return drawing, f"The row most like that of {name} ({ids[0]}), by cosine, {told}.{note}"

    controls = {
        "word": widgets.Text(word, description="a word, with the space before it"),
        "rows": widgets.IntSlider(8, 3, 12, description="how many"),
    }
    return HtmlExplorer(draw, controls, title="Words used alike got rows alike", name="similar_rows")


def _piece(tokenizer, i: int) -> str:
    """The readable letters of a token; a byte that is no text alone has none."""
    text = tokenizer.decode([i])
    return readable(text) if text == "\n" or (text.isprintable() and text not in ("", "\ufffd")) else "(a byte)"


def _bar(drawing: Drawing, left: float, y: float, word: str, value: float) -> None:
    drawing.text(left + 118, y, word, anchor="end")
    tint = matplotlib.colors.to_hex([1 - max(value, 0) * (1 - c) for c in (0.0, 0.45, 0.70)])
    drawing.rect(left + 128, y - 10, max(200 * value, 1), 20, fill=tint, stroke="#7A9CB5", hover=f"cosine {value:.3f}")
    drawing.text(left + 336, y, f"{value:.2f}", anchor="start")
