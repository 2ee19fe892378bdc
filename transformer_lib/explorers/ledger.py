"""The residual-stream ledger of notebook 06: what every head and MLP wrote at every token, and the logit lens."""

import functools

import ipywidgets as widgets
import torch

from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing, colour_at
from transformer_lib.ledger import credits, ledger, unembed
from transformer_lib.plots.style import COLOURS, DIVERGING, SEQUENTIAL
from transformer_lib.plots.tokens import readable

LONGEST = 14  # tokens that the table has room for
LENGTH, PUSH = "length", "push towards the prediction"
LEFT, WIDE, LENS, HIGH = (
    96,
    396,
    506,
    25,
)  # where the table begins and how wide it is; where the lens begins; row height
BARS = 104  # the height of the bars below


def stream_ledger(model, tokenizer, text: str) -> HtmlExplorer:
    """One row per token: what each writer added, and what the stream would predict after each block."""

    @functools.lru_cache(maxsize=1)
    @torch.no_grad()
    def look(typed: str):
        """(tokens, number of all tokens, writers, lengths (N, T), pushes (N, T), lens: per layer (words, shares))"""
        ids, pieces = tokenizer.encode(typed), tokenizer.pieces(typed)
        book = ledger(model, torch.tensor([ids[:LONGEST]]))
        shares = unembed(model, book.streams[:, 0]).softmax(-1)  # (L + 1, T, V)
        best, words = (part.tolist() for part in shares.max(-1))  # (L + 1, T) each
        pushes = torch.stack(
            [credits(model, book, token)[:, 0, t] for t, token in enumerate(words[-1])], dim=1
        )  # (N, T): towards the model's own prediction at each position
        named = [[word(i) for i in row] for row in words]
        return (
            [readable(piece) for piece in pieces[:LONGEST]], len(ids), book.names,
            book.writes[:, 0].norm(dim=-1).tolist(), pushes.tolist(), list(zip(named, best, strict=True)),
        )  # fmt: skip

    @functools.cache
    def word(token: int) -> str:
        return readable((tokenizer.pieces(tokenizer.decode([token])) or [f"id {token}"])[-1], 9)

    def draw(sentence, measure, row):
        typed, note = clip_text(sentence, instead=text)
        tokens, n, names, lengths, pushes, lens = look(typed)
        if n > LONGEST:
            note += f" (only the first {LONGEST} of {n} tokens are drawn)"
        row = min(row, len(tokens) - 1)
        said, share = lens[-1][0][row], lens[-1][1][row]
        values = lengths if measure == LENGTH else pushes
        column = [line[row] for line in values]
        most, least = max(range(len(names)), key=column.__getitem__), min(range(len(names)), key=column.__getitem__)
        what = "wrote" if measure == LENGTH else "pushed towards it"
        summary = (
            f"After {tokens[row]} ({row}) the model says {said}, probability {share:.2f}. Most {what}: {names[most]} "
            f"({column[most]:+.1f}); least: {names[least]} ({column[least]:+.1f}).{note}"
        ).replace("-", "−")
        return table(tokens, names, values, lens, row, measure == PUSH), summary

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "measure": widgets.ToggleButtons(options=[LENGTH, PUSH], value=PUSH, description="show"),
        "row": widgets.IntSlider(len(look(text)[0]) - 1, 0, LONGEST - 1, description="number of the token"),
    }
    return HtmlExplorer(draw, controls, title="Who wrote what, and what it would predict", name="stream_ledger")


def table(tokens, names, values, lens, row: int, signed: bool) -> Drawing:
    """values: (N, T), a column of the drawing per writer; lens: per layer (words, shares); row: the chosen one."""
    top = 44
    foot = top + HIGH * len(tokens)
    drawing = Drawing(800, foot + BARS + 34)
    wide = WIDE / len(names)
    heads_over(drawing, names, wide, len(lens), signed)
    largest = max(abs(v) for line in values for v in line) or 1.0
    for i, token in enumerate(tokens):
        y = top + i * HIGH
        drawing.text(LEFT - 8, y + HIGH / 2, f"{token}  {i}", anchor="end", bold=i == row)
        for j, (name, line) in enumerate(zip(names, values, strict=True)):
            hover = f"{name} at {token}: {line[i]:+.2f}" if signed else f"{name} at {token}: length {line[i]:.2f}"
            drawing.rect(LEFT + j * wide, y, wide - 1.5, HIGH - 1.5, fill=tint(line[i], largest, signed), hover=hover)
        draw_lens(drawing, lens, i, y, token)
    for y in (top + row * HIGH - 1, top + (row + 1) * HIGH - 0.5):
        drawing.line(LEFT - 2, y, 798, y, COLOURS["red"], 2.2)
    draw_bars(drawing, names, [line[row] for line in values], foot, wide, signed)
    draw_right_words(drawing, tokens[row], lens, row, foot)
    return drawing


def heads_over(drawing, names, wide, n_streams, signed) -> None:
    """Two lines of column headings: the block, then the head's number or MLP."""
    for j, name in enumerate(names):
        x = LEFT + (j + 0.5) * wide - 1
        short = "emb" if name == "embedding" else "MLP" if name.endswith("MLP") else name.split()[-1]
        drawing.text(x, 31, short, size=min(14, wide * 0.42 + 1.2))
        if name.endswith("head 0"):
            mine = [k for k, other in enumerate(names) if other.split()[0] == name.split()[0]]
            drawing.text(
                LEFT + (mine[0] + len(mine) / 2) * wide, 11, f"block {name.split()[0][1:]}: heads, MLP", size=14
            )
    space = (800 - LENS) / n_streams
    drawing.text(LENS + 1.5 * space, 11, "the lens: next word after …", size=14)
    for k in range(n_streams):
        drawing.text(LENS + (k + 0.5) * space, 31, "embedding" if k == 0 else f"block {k - 1}", size=14)


def draw_lens(drawing, lens, i, y, token) -> None:
    space = (800 - LENS) / len(lens)
    for k, (words, shares) in enumerate(lens):
        where = "the embedding" if k == 0 else f"block {k - 1}"
        colour = colour_at(SEQUENTIAL, shares[i])
        hover = f"{token}, after {where}: {words[i]} with probability {shares[i]:.3f}"
        drawing.rect(LENS + k * space, y, space - 1.5, HIGH - 1.5, fill=colour, hover=hover)
        ink = "#111111" if shares[i] > 0.5 else "#FFFFFF"
        drawing.text(LENS + (k + 0.5) * space, y + HIGH / 2, words[i], size=min(15, space / 6.2), colour=ink)


def draw_bars(drawing, names, column, foot, wide, signed) -> None:
    """The chosen row as bars below their columns."""
    largest = max(max(abs(v) for v in column), 1e-9)
    zero = foot + (0.62 if signed else 0.84) * BARS
    reach = (0.44 if signed else 0.66) * BARS
    drawing.text(LEFT - 8, zero, "0", anchor="end")
    for j, (name, value) in enumerate(zip(names, column, strict=True)):
        high = reach * abs(value) / largest
        colour = tint(value, largest, signed=True) if signed else COLOURS["blue"]
        drawing.rect(
            LEFT + j * wide + 3, zero - high * (value > 0), wide - 7, high, fill=colour, hover=f"{name}: {value:.2f}"
        )
        if wide > 30:
            above = value > 0 or not signed
            number = f"{value:.1f}".replace("-", "−")
            drawing.text(LEFT + (j + 0.5) * wide - 1, zero + (-high - 9 if above else high + 9), number, size=13)
    drawing.line(LEFT, zero, LEFT + WIDE, zero, COLOURS["black"], 1)
    words = "logits above the mean: red towards the prediction, blue away" if signed else "length of what was written"
    drawing.text(LEFT, foot + BARS + 18, words, anchor="start", size=13)


def draw_right_words(drawing, token, lens, row, foot) -> None:
    """The framed row of the lens as bars of probability."""
    drawing.text(LENS, foot + 14, f"after {token}, its likeliest next word:", anchor="start", size=14)
    for k, (words, shares) in enumerate(lens[-3:]):
        y, name = foot + 32 + 30 * k, len(lens) - len(lens[-3:]) + k
        drawing.rect(LENS, y, 284, 22, fill="#EEEEEE")
        drawing.rect(LENS, y, max(284 * shares[row], 0.5), 22, fill=COLOURS["sky"])
        where = "embedding" if name == 0 else f"block {name - 1}"
        drawing.text(LENS + 8, y + 11, f"{where}: {words[row]}  {shares[row]:.2f}", anchor="start")


def tint(value: float, largest: float, signed: bool) -> str:
    """The colour of a cell; the root brings out the small ones."""
    share = (abs(value) / largest) ** 0.5
    if signed:
        return colour_at(DIVERGING, 0.5 + 0.48 * (share if value >= 0 else -share))
    return colour_at(SEQUENTIAL, share)
