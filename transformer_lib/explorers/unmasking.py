"""The unmasking player of notebook 11: a sentence of the little language appears, word by word, in any order."""

import functools
from typing import NamedTuple

import ipywidgets as widgets
import torch
from torch import Tensor

from transformer_lib import translation
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS
from transformer_lib.relatives.diffusion import unmask
from transformer_lib.relatives.masked_encoder import MaskedTransformer

LEFT, WIDE, HIGH = 74, 102, 38  # pixels: where the words begin, a word's room, a row's height
HIDDEN, OLD, NEW = "#ECECEC", "#DCEBF7", "#FFE08A"


class Film(NamedTuple):
    """ids: (n + 1, T), the sentence before the first step and after each; guesses, sure: what the model would say."""

    ids: Tensor
    guesses: Tensor  # (n + 1, T)
    sure: Tensor  # (n + 1, T), the probability of the guess


def unmasking_film(model: MaskedTransformer, start: Tensor, steps: int, **how) -> Film:
    """All of one unmasking. start: (T,) ids with model.mask_id where words are to be written; how: see `unmask`."""
    frames = [start]
    unmask(model, start[None], steps=steps, on_step=lambda step, ids, revealed: frames.append(ids[0]), **how)
    ids = torch.stack(frames)  # (n + 1, T)
    with torch.no_grad():
        sure, guesses = model(ids).softmax(dim=-1).max(dim=-1)  # (n + 1, T) each
    return Film(ids, guesses, sure)


def unmasking_player(model: MaskedTransformer, words: list[str], length: int, start: str = "") -> HtmlExplorer:
    """Words given by the learner stay; the rest is hidden and uncovered in as many steps as the learner likes.

    words: the text of each id. length: words of a sentence. start: the words given at first, _ for a hidden one.
    """
    ids = {word: i for i, word in enumerate(words)}

    @functools.lru_cache(maxsize=64)
    def film(given: tuple, steps: int, order: str, temperature: float, seed: int) -> Film:
        return unmasking_film(model, torch.tensor(given), steps, order=order, temperature=temperature, seed=seed)

    def draw(given, step, steps, order, temperature, seed):
        typed = clip_text(given, instead="_")[0].split()[:length]
        unknown = [word for word in typed if word not in ids and word != "_"]
        typed += ["_"] * (length - len(typed))
        shown = film(tuple(ids.get(word, model.mask_id) for word in typed), steps, order, temperature, seed)
        at = min(step, steps)
        last = [words[i] for i in shown.ids[-1].tolist()]
        verdict, right = judge(last)
        drawing = film_drawing(shown, at, words, model.mask_id)
        end = at == steps
        told = f"“{' '.join(last)}”: {verdict}." if end else "The verdict comes with the last step."
        drawing.text(LEFT, drawing.height - 18, verdict if end else "", anchor="start", bold=True,
                     colour=COLOURS["green"] if right else COLOURS["red"])  # fmt: skip
        said = f" {unknown[0]!r} is no word of this language, so it is hidden." if unknown else ""
        hidden = int((shown.ids[at] == model.mask_id).sum())
        return drawing, f"After step {at} of {steps}: {hidden} of {length} words hidden. {told}{said}"

    controls = {
        "given": widgets.Text(start or "_ " * length, description="given words, _ = hidden (Enter)"),
        "step": widgets.IntSlider(length, 0, length, description="after step"),
        "steps": widgets.IntSlider(length, 1, length, description="steps in all"),
        "order": widgets.ToggleButtons(options=["confidence", "random"], value="confidence", description="order"),
        "temperature": widgets.FloatSlider(0.5, min=0.0, max=1.5, step=0.1, description="temperature"),
        "seed": widgets.IntSlider(0, 0, 99, description="seed"),
    }
    return HtmlExplorer(draw, controls, title="A sentence appears in any order", name="unmasking_player")


def judge(sentence: list[str]) -> tuple[str, bool]:
    """What the finished sentence means, or what is wrong with it; and whether it is right."""
    try:
        return "right: " + " ".join(translation.translate_back(" ".join(sentence)).source), True
    except ValueError as error:
        return f"wrong: {str(error).removesuffix('.')}", False


def film_drawing(film: Film, at: int, words: list[str], mask_id: int) -> Drawing:
    """A row per step up to `at`; a hidden word shows the model's guess in grey, with its probability."""
    n, length = film.ids.shape
    drawing = Drawing(800, 30 + n * (HIGH + 4) + 58)
    for column in range(length):
        drawing.text(LEFT + (column + 0.5) * WIDE, 14, f"word {column + 1}", colour="#444444")
    for row in range(at + 1):
        y = 30 + row * (HIGH + 4)
        drawing.text(LEFT - 10, y + HIGH / 2, "start" if row == 0 else f"step {row}", anchor="end")
        for column in range(length):
            token = int(film.ids[row, column])
            x, new = LEFT + column * WIDE, row > 0 and int(film.ids[row - 1, column]) == mask_id
            guess, sure = words[int(film.guesses[row, column])], float(film.sure[row, column])
            if token == mask_id:
                drawing.rect(x, y, WIDE - 4, HIGH, HIDDEN, hover=f"hidden; the likeliest word is {guess}, {sure:.0%}")
                drawing.text(x + WIDE / 2 - 2, y + HIGH / 2, f"{guess}? {sure:.0%}", 13.5, colour="#767676")
            else:
                meaning = translation.MEANING.get(words[token], words[token])
                drawing.rect(x, y, WIDE - 4, HIGH, NEW if new else OLD, hover=f"{words[token]}: {meaning}")
                drawing.text(x + WIDE / 2 - 2, y + HIGH / 2, words[token], bold=new)
    for column in range(length):
        token = int(film.ids[at, column])
        if token != mask_id:
            meaning = translation.MEANING.get(words[token], "")
            drawing.text(LEFT + (column + 0.5) * WIDE - 2, 30 + (at + 1) * (HIGH + 4) + 8, meaning, colour="#444444")
    return drawing
