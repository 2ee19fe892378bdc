"""Explorers of notebook 04: the head atlas with knock-out, and a film of an induction head that forms.

The atlas serves notebook 12 too: a model with many heads shows the strips of one layer, and all heads as small squares.
"""

import functools

import ipywidgets as widgets
import numpy as np
import torch

from transformer_lib.explorers.attention import colour_of, draw_cells
from transformer_lib.explorers.base import Explorer, HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.losses import token_losses
from transformer_lib.plots.heads import Film
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import edit, record, zero_head

LONGEST = 32  # tokens that an atlas has room for
LEFT, STRIP = 428, 21  # where the keys begin, and the height of a head's strip, in pixels
BARS = 124, 290  # where the bars of the loss begin and end
MOST_STRIPS = 16  # heads that an atlas has room for, one strip each
MOST_BUTTONS = 12  # layers beyond these are chosen with a slider
OVERVIEW = 8, 212  # where the squares of all heads begin and end


def head_atlas(
    model, tokenizer, text: str, row: int, jobs: dict | None = None, knock_out: bool = False, start=None, frames=None
) -> HtmlExplorer:
    """All heads at one query, the map of one head, and what knocking that head out does to the loss of every token.

    text and row (the number of a query in it) are where the learner starts, at the head `start` (layer, head), or at
    that of the last layer that is surest there, knocked out or not. jobs: {(layer, head): [names]} of
    `head_scores.named_heads`, to be written beside the heads that have one. frames: from ids to {query: key}, cells
    of the map to be framed.
    """
    layers, heads, jobs = model.cfg.n_layers, model.cfg.n_heads, jobs or {}
    first_layer, first_head = start or (layers - 1, None)

    @functools.lru_cache(maxsize=24)  # of about a MB each for a model of 270 heads
    def look(typed: str, knocked: tuple[int, int] | None):
        """(pieces, weights (L, H, T, T), losses (T − 1,)), with one head knocked out or none."""
        ids = torch.tensor([tokenizer.encode(typed)[:LONGEST]])  # (1, T)
        changes = {} if knocked is None else {f"blocks.{knocked[0]}.attention.heads": zero_head(knocked[1])}
        with torch.no_grad(), edit(model, changes), record(model) as seen:
            losses = token_losses(model(ids)[:, :-1], ids[:, 1:])[0]  # (T − 1,)
        maps = [seen[f"blocks.{i}.attention.weights"][0] for i in range(layers)]  # (H, T, T) each
        return tokenizer.pieces(typed), torch.stack(maps).numpy(), losses.numpy()

    def draw(sentence, layer, head, row, knock_out):
        typed, note = clip_text(sentence, instead=text)
        if len(tokenizer.encode(typed)) < 2:
            typed, note = text, f' (one token has no next one to predict: showing "{text}")'
        pieces, _, before = look(typed, None)
        _, maps, after = look(typed, (layer, head) if knock_out else None)
        names = [readable(piece) for piece in pieces[:LONGEST]]
        if len(pieces) > LONGEST:
            note += f" (only the first {LONGEST} of {len(pieces)} tokens are drawn)"
        row = min(row, len(names) - 1)
        marked = frames(tokenizer.encode(typed)[:LONGEST]) if frames else {}
        drawing = atlas_drawing(maps, names, row, (layer, head), before, after if knock_out else None, jobs, marked)
        return drawing, atlas_summary(maps[layer, head], names, row, (layer, head), before, after, knock_out) + note

    controls = {
        "sentence": widgets.Text(text, description="your text"),
        "layer": widgets.ToggleButtons(options=range(layers), value=first_layer, description="layer")
        if layers <= MOST_BUTTONS
        else widgets.IntSlider(first_layer, 0, layers - 1, description="layer"),
        "head": widgets.ToggleButtons(options=range(heads), value=first_head or 0, description="head"),
        "row": widgets.IntSlider(row, 0, LONGEST - 1, description="number of the query"),
        "knock_out": widgets.Checkbox(knock_out, description="knock this head out"),
    }
    if first_head is None:
        controls["head"].value = int(sharpest(look(text, None)[1], row)[first_layer].argmax())
    return HtmlExplorer(draw, controls, title="Every head at once, and the loss without one", name="head_atlas")


def atlas_summary(weights, names, row, which, before, after, knock_out: bool) -> str:
    """Where the head looks most, and what its absence costs."""
    best = int(weights[row].argmax())
    words = f"Layer {which[0]}, head {which[1]}: {names[row]} ({row}) gives {weights[row, best]:.2f} "
    words += f"to {names[best]} ({best}). "
    if not knock_out:
        return words + f"Loss on this text: {before.mean():.2f} nats per token."
    worst = int((after - before).argmax())
    return words + (
        f"Knocked out: loss {before.mean():.2f} → {after.mean():.2f} nats per token; "
        f"it rises most at {names[worst + 1]} ({worst + 1}): {before[worst]:.2f} → {after[worst]:.2f}."
    )


def sharpest(maps, row: int):
    """(L, H): the largest weight that each head gives, at this query, to a token between the first and itself."""
    return maps[:, :, row, 1:row].max(axis=-1, initial=0.0)


def atlas_drawing(maps, names, row: int, which, before, after, jobs, marked) -> Drawing:
    """Strips of heads above, the chosen head's map below, both with keys as columns; losses left of the map.

    maps: (L, H, T, T); before, after: (T − 1,) losses of each next token, after = None while no head is knocked out.
    marked: {query: key}, framed in the map.
    """
    n, (layers, heads) = len(names), maps.shape[:2]
    high = min(30.0, max(18.5, 440 / n))  # pixels per token
    shown = range(layers) if layers * heads <= MOST_STRIPS else [which[0]]
    top = 34 + len(shown) * (heads * STRIP + 6)  # below the strips
    drawing = Drawing(800, top + 58 + n * high)
    wide = min(high, 366 / n)
    every = "all heads" if len(shown) == layers else f"layer {which[0]}"
    drawing.text(LEFT - 8, 16, f"{every} at the query {names[row]} ({row})", anchor="end", bold=True)
    drawing.text(LEFT, 16, "what it reads, column = key", anchor="start", bold=True)
    if len(shown) < layers:
        draw_overview(drawing, maps, names, row, which)
    for k, layer in enumerate(shown):
        for head in range(heads):
            y = 30 + k * (heads * STRIP + 6) + head * STRIP
            label = f"layer {layer}, head {head}"
            own = jobs.get((layer, head), [])
            draw_strip(drawing, maps[layer, head, row], names, row, y, wide, label)
            out = "✗ " if after is not None and (layer, head) == which else ""
            label = label if len(shown) == layers else f"head {head}"
            words = f"{out}{label}" + (f" · {', '.join(own[:3])}" if own else "") + (" …" if own[3:] else "")
            drawing.text(LEFT - 8, y + STRIP / 2, words, anchor="end", bold=(layer, head) == which,
                         colour=COLOURS["red"] if (layer, head) == which else COLOURS["black"])  # fmt: skip
    place = [top + 52 + (i + 0.5) * high for i in range(n)]
    drawing.text(LEFT, top + 16, f"layer {which[0]}, head {which[1]}: row = query", anchor="start", bold=True)
    drawing.text(LEFT - 8, top + 16, "query", anchor="end", bold=True)
    drawing.text(8, top + 16, "next token: its loss (nats)", anchor="start", bold=True)
    for i in range(n):
        drawing.text(LEFT - 8, place[i], f"{names[i]}  {i}", anchor="end", bold=i == row)
    draw_losses(drawing, names, place, high, before, after)
    draw_cells(drawing, maps[which], names, row, place, high)
    for query, key in marked.items():
        drawing.rect(LEFT + key * wide, place[query] - high / 2, wide - 1, high - 1, "none", COLOURS["red"])
    return drawing


def draw_overview(drawing, maps, names, row: int, which) -> None:
    """A square for every head of a deep model, beside the strips: columns are layers, rows heads."""
    (layers, heads), (start, end) = maps.shape[:2], OVERVIEW
    wide = (end - start) / layers
    drawing.text(start, 16, "sharpest look", anchor="start", bold=True)
    for (layer, head), weight in np.ndenumerate(sharpest(maps, row)):
        y = 30 + head * STRIP
        best = 1 + int(maps[layer, head, row, 1:row].argmax()) if row > 1 else 0
        hover = f"layer {layer}, head {head}: {names[row]} → {names[best]} ({best}): {weight:.2f}"
        drawing.rect(start + layer * wide, y, wide - 1, STRIP - 3, colour_of(weight), hover=hover)
    x, below = start + which[0] * wide, 30 + heads * STRIP
    for side in (x - 0.5, x + wide - 0.5):
        drawing.line(side, 28, side, below - 2, COLOURS["red"], 1.5)
    for layer in range(0, layers, max(1, layers // 5)):
        drawing.text(start + (layer + 0.5) * wide, below + 6, layer, size=13)
    drawing.text(end + 6, below + 6, "layer", anchor="start", size=13)


def draw_strip(drawing, weights, names, row: int, y: float, wide: float, label: str) -> None:
    """One head's weights at one query, a cell per key."""
    for j in range(len(names)):
        words = f"{label}: {names[row]} → {names[j]}: " + (f"{weights[j]:.3f}" if j <= row else "later, so never seen")
        drawing.rect(LEFT + j * wide, y, wide - 1, STRIP - 3, hover=words,
                     fill=colour_of(weights[j]) if j <= row else "#E4E4E4")  # fmt: skip


def draw_losses(drawing, names, place, high: float, before, after) -> None:
    """A bar for the loss of each next token: grey as trained, and with a head knocked out what was added in red."""
    start, end = BARS
    most = max(4.0, float(before.max()), 0.0 if after is None else float(after.max()))
    for i, old in enumerate(before):
        new = old if after is None else after[i]
        words = f"after {names[i]} comes {names[i + 1]}: loss {old:.2f}"
        words += "" if after is None else f", with the head knocked out {new:.2f} ({new - old:+.2f})"
        drawing.text(start - 8, place[i], names[i + 1], anchor="end")
        y, thick = place[i] - high / 2 + 4, high - 8
        ends = [start + (end - start) * min(old, new) / most, start + (end - start) * max(old, new) / most]
        drawing.rect(start, y, max(ends[0] - start, 1.5), thick, fill="#8C8C8C", hover=words)
        if ends[1] - ends[0] > 0.5:
            colour = COLOURS["red"] if new > old else COLOURS["sky"]
            drawing.rect(ends[0], y, ends[1] - ends[0], thick, fill=colour, hover=words)
        if abs(new - old) >= 0.3:
            drawing.text(ends[1] + 5, place[i], f"{new - old:+.1f}".replace("-", "−"), anchor="start", size=14)


def induction_film(frames, symbols, right) -> Explorer:
    """Go through a training run step by step and watch one head's map.

    frames: dicts with step, loss, induction (L, H) and maps (L, H, T, T). symbols: T labels of the sequence that the
    maps read; right: {query: key}, where an induction head should look.
    """
    steps = [frame["step"] for frame in frames]
    layers, heads = frames[-1]["induction"].shape
    options = [(f"layer {i}, head {j}", (i, j)) for i in range(layers) for j in range(heads)]
    best = tuple(int(x) for x in np.unravel_index(frames[-1]["induction"].argmax(), (layers, heads)))

    def build(fig):
        film = Film(fig, frames, symbols, right)

        def update(step, which):
            frame = frames[steps.index(step)]
            film.set(step, [float(f["induction"][which]) for f in frames], frame["maps"][which])
            return (
                f"Step {step}: loss {frame['loss']:.2f} nats per symbol. Layer {which[0]}, head {which[1]}: "
                f"induction score {frame['induction'][which]:.2f}, token before {frame['previous'][which]:.2f}."
            )

        return update

    controls = {
        "step": widgets.SelectionSlider(options=steps, value=steps[-1], description="training step"),
        "which": widgets.ToggleButtons(options=options, value=best, description="head"),
    }
    title = "A head that finds the earlier occurrence"
    return Explorer(build, controls, title=title, name="induction_film", figsize=(8, 4.9))
