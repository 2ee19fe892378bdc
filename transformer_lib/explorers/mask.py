"""Explorers of notebook 05: the mask painter, and the future-perturbation test on the learner's own sentence."""

import functools
import re

import ipywidgets as widgets
import torch

from transformer_lib.attention import causal_mask
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.explorers.mask_drawing import painter_drawing
from transformer_lib.model import Transformer
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import edit

WORDS = ("Once", "there", "was", "a", "fox", "named", "Mia", ".", "She")
RULES = ("causal", "none", "sliding window", "prefix")
MOST_LAYERS = 6
LONGEST = 12  # tokens that the bars have room for
WAYS = ("−∞ before the softmax", "no mask", "0 after the softmax")


def rule_mask(rule: str, t: int, width: int) -> torch.Tensor:
    """(T, T) bool, True = visible. width: tokens in a sliding window (the query included), or in a prefix."""
    if rule == "none":
        return torch.ones(t, t, dtype=torch.bool)
    if rule == "sliding window":
        return causal_mask(t).triu(1 - width)
    if rule == "prefix":
        return causal_mask(t) | (torch.arange(t) < width)
    return causal_mask(t)


def layers_needed(mask: torch.Tensor, most: int = MOST_LAYERS) -> torch.Tensor:
    """(T, T) int64: after how many blocks position i can have heard of position j; most + 1 = not within `most`.

    One block lets i read what it sees, and the residual stream keeps what i has: so a block is (mask or identity), and
    n blocks are its n-th power. A position needs 0 blocks to know itself.
    """
    step = mask | torch.eye(len(mask), dtype=torch.bool)  # (T, T)
    reach = torch.eye(len(mask), dtype=torch.bool)
    needed = torch.where(reach, 0, most + 1)
    for n in range(1, most + 1):
        reach = (step.float() @ reach.float()) > 0  # (T, T): i reads somebody who has heard of j
        needed = torch.where(reach, needed.clamp(max=n), needed)
    return needed


def flipped_pairs(typed: str, t: int) -> tuple[list[tuple[int, int]], str]:
    """The pairs (query, key) in a text such as "2→6, 4→8", and a note on those that do not exist."""
    found = [
        (int(i), int(j)) for i, j in re.findall(r"(?<!\d)(\d{1,3})(?!\d)\s*(?:→|->|>|-|:)\s*(\d{1,3})(?!\d)", typed)
    ]
    pairs = list(dict.fromkeys(pair for pair in found if max(pair) < t))
    note = "" if len(pairs) == len(set(found)) else f" (numbers go from 0 to {t - 1}: other pairs are left out)"
    if typed.strip() and not found:
        note = " (write pairs as 2→6 or 2>6)"
    return pairs, note


def mask_painter(tokens=WORDS) -> HtmlExplorer:
    """Paint a mask: which pairs stay, how many, and what each position can have heard of after n layers."""
    t = len(tokens)

    def draw(rule, width, padding, flips, layers, query):
        width, query = min(width, t), min(query, t - 1)
        mask = rule_mask(rule, t, width) & (torch.arange(t) < t - padding)  # (T, T)
        pairs, note = flipped_pairs(flips, t)
        for i, j in pairs:
            mask[i, j] = ~mask[i, j]
        needed = layers_needed(mask)
        reached = needed <= layers  # (T, T)
        real = t - padding
        leaks = int(reached[:real, :real].triu(1).any(dim=1).sum())
        names = [*tokens[:real], *["[pad]"] * padding]
        drawing = painter_drawing(mask, needed, layers, query, names, pairs, real)
        told = f"{leaks} of {real} real tokens hear of their future" if leaks else "nobody hears of the future"
        summary = (
            f"{int(mask.sum())} of {t * t} pairs stay. After {layers} layer{'s' if layers > 1 else ''}, position "
            f"{query} has heard of {int(reached[query].sum())} of {t} positions; {told}.{note}"
        )
        return drawing, summary

    controls = {
        "rule": widgets.ToggleButtons(options=RULES, value="sliding window", description="rule"),
        "width": widgets.IntSlider(3, 1, t, description="width of the window or prefix"),
        "padding": widgets.IntSlider(0, 0, t - 2, description="padding tokens at the end"),
        "flips": widgets.Text("", description="flip pairs", placeholder="query→key, for example 2→6, 4→8"),
        "layers": widgets.IntSlider(2, 1, MOST_LAYERS, description="layers"),
        "query": widgets.IntSlider(t - 1, 0, t - 1, description="follow the query"),
    }
    return HtmlExplorer(draw, controls, title="Which pairs stay, and how far they carry", name="mask_painter")


def unmasked(model: Transformer) -> Transformer:
    """The same weights without the causal mask."""
    twin = Transformer(model.cfg.replace(causal=False)).eval()
    twin.load_state_dict(model.state_dict())
    return twin


@torch.no_grad()
def logits_of(model: Transformer, ids, way: str):
    """(1, T, V): the logits with the mask applied in one of WAYS."""
    if way == WAYS[0]:
        return model(ids)
    if way == WAYS[1]:
        return unmasked(model)(ids)
    twin, seen = unmasked(model), causal_mask(ids.shape[1])
    names = [f"blocks.{i}.attention.weights" for i in range(model.cfg.n_layers)]
    with edit(twin, {name: lambda weights: weights * seen for name in names}):
        return twin(ids)


def changes(model, ids, at: int, new: int, way: str) -> torch.Tensor:
    """(T,): how much the logits of each position move, at most, when token `at` becomes `new`."""
    other = ids.clone()
    other[0, at] = new
    return (logits_of(model, other, way) - logits_of(model, ids, way)).abs().amax(-1)[0]


def look_ahead(model, tokenizer, text: str) -> HtmlExplorer:
    """Change one token of a sentence: whose logits move, with the mask, without it, and with the wrong one?"""

    @functools.lru_cache(maxsize=4)
    def split(typed):
        used, note = clip_text(typed, instead=text)
        ids, pieces = tokenizer.encode(used), tokenizer.pieces(used)
        if len(ids) > LONGEST:
            note += f" (only the first {LONGEST} of {len(ids)} tokens are used)"
        return torch.tensor([ids[:LONGEST]]), [readable(piece, 8) for piece in pieces[:LONGEST]], note

    def draw(sentence, instead, at, way):
        ids, tokens, note = split(sentence)
        at = min(at, len(tokens) - 1)
        typed = clip_text(instead, instead=" dog")[0]
        new = next(
            (i for i in tokenizer.encode(typed) if i != ids[0, at]), (int(ids[0, at]) + 1) % model.cfg.vocab_size
        )
        moved = changes(model, ids, at, new, way)  # (T,)
        name = readable(tokenizer.decode([new]), 8) or "?"
        before = float(moved[:at].max()) if at else 0.0
        told = "stay bit for bit" if before == 0 else f"move by up to {before:.2g}: they see their future"
        subject = f"The {at} positions before it {told}" if at else "No position stands before it"
        summary = f"Token {at} ({tokens[at]}) becomes {name}, {way}. {subject}.{note}"
        return change_drawing(tokens, moved.tolist(), at, name), summary

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "instead": widgets.Text(" dog", description="put this token there instead"),
        "at": widgets.IntSlider(5, 0, LONGEST - 1, description="change token number"),
        "way": widgets.ToggleButtons(options=WAYS, value=WAYS[0], description="mask"),
    }
    return HtmlExplorer(draw, controls, title="Change one token: who notices?", name="look_ahead")


def change_drawing(tokens, moved, at: int, new: str) -> Drawing:
    """A bar per token, on a logarithmic scale from 10⁻⁶ to 100; the changed token is framed."""
    drawing, wide, floor, high = Drawing(800, 262), 728 / len(tokens), 196, 160
    for power in (-6, -4, -2, 0, 2):
        y = floor - high * (power + 6) / 8
        drawing.line(62, y, 796, y, "#DDDDDD", 1)
        drawing.text(56, y, {-6: "≤ 10⁻⁶", -4: "10⁻⁴", -2: "0.01", 0: "1", 2: "100"}[power], anchor="end", size=13)
    drawing.text(4, 12, "largest change of a logit", anchor="start", size=14, colour="#555555")
    for i, (token, change) in enumerate(zip(tokens, moved, strict=True)):
        x, colour = 66 + i * wide, COLOURS["blue"] if i >= at else COLOURS["red"]
        if change == 0:
            drawing.text(x + wide / 2, floor - 14, "0", bold=True, colour=COLOURS["green"])
        else:
            tall = min(max((torch.tensor(change).log10().item() + 6) / 8, 0.02), 1) * high
            hover = f"position {i}, {token}: moves by up to {change:.3g}"
            drawing.rect(x + wide * 0.14, floor - tall, wide * 0.72, tall, fill=colour, hover=hover, radius=2)
        if i == at:
            drawing.rect(x + 1, floor + 6, wide - 2, 54, fill="#FFE08A", stroke=COLOURS["red"], radius=4)
            drawing.text(x + wide / 2, floor + 46, new, size=13, bold=True)
            drawing.line(x + wide * 0.15, floor + 22, x + wide * 0.85, floor + 22, COLOURS["red"], 2)
        drawing.text(x + wide / 2, floor + 22, token, size=13, colour=COLOURS["grey"] if i == at else COLOURS["black"])
    return drawing
