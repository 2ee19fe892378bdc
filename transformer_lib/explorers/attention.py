"""Explorers of notebook 02: three tokens with movable queries and keys, a soft dictionary, the toy's attention."""

import functools
import math

import ipywidgets as widgets
import matplotlib
import torch

from transformer_lib.attention import attention_weights
from transformer_lib.explorers.base import Explorer, HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing, colour_at
from transformer_lib.plots.attention import FourPanels, LookUp
from transformer_lib.plots.style import COLOURS, SEQUENTIAL
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record

LONGEST = 24  # tokens that a map has room for


def turned(vectors, degrees) -> torch.Tensor:
    """(T, 2): each vector turned about the origin, anticlockwise, by its own angle."""
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))  # (T,)
    x, y = torch.as_tensor(vectors, dtype=torch.float64).T
    return torch.stack((x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()), dim=1)  # (T, 2)


def three_tokens(q, k, v, tokens) -> Explorer:
    """Turn the queries and keys of a few tokens and watch scores, weights and outputs. q, k, v: (T, 2)."""
    values = torch.as_tensor(v, dtype=torch.float64)  # (T, 2)

    def build(fig):
        panels = FourPanels(fig, values.numpy(), tokens)

        def update(stretch, **turns):
            queries = stretch * turned(q, [turns[f"q{i}"] for i in range(len(tokens))])  # (T, 2)
            keys = turned(k, [turns[f"k{i}"] for i in range(len(tokens))])  # (T, 2)
            weights = attention_weights(queries, keys)  # (T, T)
            panels.set(queries.numpy(), keys.numpy(), queries @ keys.T / math.sqrt(2), weights.numpy())
            return spoken(weights, weights @ values, tokens)

        return update

    controls = {
        f"{word[0]}{i}": widgets.IntSlider(0, -180, 180, 5, description=f"turn {word} of {token} (°)")
        for i, token in enumerate(tokens)
        for word in ("query", "key")
    }
    controls["stretch"] = widgets.FloatSlider(1.0, min=0.0, max=1.3, step=0.1, description="length of all queries ×")
    title = "Directions decide who is looked at; outputs stay in the triangle"
    return Explorer(build, controls, title=title, name="three_tokens", figsize=(8, 6.0))


def spoken(weights, outputs, tokens) -> str:
    """Who looks where most, and what the last one gets, in one line."""
    best = weights.argmax(dim=1).tolist()
    looks = [f"{token} → {tokens[j]} {float(weights[i, j]):.2f}" for i, (token, j) in enumerate(zip(tokens, best))]
    x, y = outputs[-1].tolist()
    return f"Largest weights: {'; '.join(looks)}. Output of {tokens[-1]}: ({x:.2f}, {y:.2f}).".replace("-", "−")


def soft_dictionary(entries: dict) -> Explorer:
    """Look up a direction among the four winds, softly. entries: {name: number}, north first, clockwise."""
    names, numbers = list(entries), torch.tensor(list(entries.values()), dtype=torch.float64)  # (n,)
    keys = compass(torch.arange(len(names)) * 360 / len(names))  # (n, 2), length 1
    around = torch.arange(0, 361, 3)
    nearest = numbers[(compass(around) @ keys.T).argmax(dim=1)]

    def build(fig):
        picture = LookUp(fig, names, keys.numpy(), around.numpy(), nearest.numpy())

        def update(direction, length):
            query = compass(torch.tensor([direction]))  # (1, 2), length 1
            weights = attention_weights(length * query, keys)[0]  # (n,)
            answer = float(weights @ numbers)
            answers = attention_weights(length * compass(around), keys) @ numbers
            drawn = query[0].numpy() * (0.4 + 0.02 * length)  # the wheel has no room for a length of 30
            picture.set(drawn, weights.tolist(), answers.numpy(), direction, answer)
            first, second = torch.sort(length * (query @ keys.T)[0] / math.sqrt(2), descending=True).values[:2]
            best = names[int(weights.argmax())]
            return (
                f"Best key {best}: {first - second:.2f} above the next, weight {weights.max():.2f}. "
                f"The look-up returns {answer:.1f} °C, {best} alone {entries[best]}."
            )

        return update

    controls = {
        "direction": widgets.IntSlider(60, 0, 360, 5, description="direction of the query (°)"),
        "length": widgets.FloatSlider(2.0, min=0.0, max=30.0, step=0.5, description="length of the query"),
    }
    title = "A short query mixes the entries; a long one picks one of them"
    return Explorer(build, controls, title=title, name="soft_dictionary", figsize=(8, 4.4))


def compass(bearings) -> torch.Tensor:
    """(n, 2): unit vectors for directions in degrees, clockwise from north."""
    angles = torch.deg2rad(bearings.double())  # (n,)
    return torch.stack((angles.sin(), angles.cos()), dim=1)  # (n, 2)


def attention_map(model, tokenizer, text: str, row: int) -> HtmlExplorer:
    """Any head of any layer on the learner's own text: lines for one query, and the whole map.

    text and row (the number of a query in it) are where the learner starts, at the head whose query looks hardest at
    a token between the first and itself.
    """
    layers, heads = model.cfg.n_layers, model.cfg.n_heads

    @functools.lru_cache(maxsize=1)
    def look(typed: str):
        """(pieces, one (H, T, T) array of weights per layer)"""
        ids, pieces = tokenizer.encode(typed)[:LONGEST], tokenizer.pieces(typed)
        with torch.no_grad(), record(model) as seen:
            model(torch.tensor([ids]))
        return pieces, [seen[f"blocks.{i}.attention.weights"][0].numpy() for i in range(layers)]

    def draw(sentence, layer, head, row):
        typed, note = clip_text(sentence, instead=text)
        pieces, maps = look(typed)
        tokens = pieces[:LONGEST]
        if len(pieces) > LONGEST:
            note += f" (only the first {LONGEST} of {len(pieces)} tokens are drawn)"
        row = min(row, len(tokens) - 1)
        weights = maps[layer][head]  # (T, T)
        best = int(weights[row].argmax())
        summary = (
            f"Layer {layer}, head {head}: {readable(tokens[row])} ({row}) gives {weights[row, best]:.2f} to "
            f"{readable(tokens[best])} ({best}); an even share would be {1 / (row + 1):.2f}.{note}"
        )
        return attention_drawing(weights, tokens, row), summary

    looks = {(i, j): m[j, row, 1:row].max(initial=0) for i, m in enumerate(look(text)[1]) for j in range(heads)}
    layer, head = max(looks, key=looks.get)
    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "layer": widgets.ToggleButtons(options=range(layers), value=layer, description="layer"),
        "head": widgets.ToggleButtons(options=range(heads), value=head, description="head"),
        "row": widgets.IntSlider(row, 0, LONGEST - 1, description="number of the query"),
    }
    return HtmlExplorer(draw, controls, title="Who looks at whom, in a model you trained", name="attention_map")


def colour_of(weight: float) -> str:
    """The course's colour of a weight between 0 and 1, as #RRGGBB."""
    return colour_at(SEQUENTIAL, weight)


def attention_drawing(weights, tokens, row: int) -> Drawing:
    """One head: lines from the chosen query to its keys on the left, the whole map on the right, hover texts on both.

    weights: (T, T), row i = query i, zero above the diagonal. row: the chosen query.
    """
    names, n = [readable(token) for token in tokens], len(tokens)
    high = min(40.0, max(21.0, 500 / n))  # pixels per token
    drawing = Drawing(800, 56 + n * high)
    place = [52 + (i + 0.5) * high for i in range(n)]  # the height of token i, in both columns and in the map
    drawing.text(138, 16, "keys", anchor="end", bold=True)
    drawing.text(404, 16, "queries", anchor="end", bold=True)
    drawing.text(428, 16, "weights: row = query, column = key", anchor="start", bold=True)
    draw_lines(drawing, weights, names, row, place)
    for i in range(n):
        share = weights[row][i] if i <= row else 0.0
        tint = matplotlib.colors.to_hex([1 - share * (1 - c) for c in (0.45, 0.72, 0.91)])
        drawing.rect(4, place[i] - high / 2 + 1, 138, high - 2, fill=tint, radius=4,
                     hover=f"{names[row]} gives {names[i]} the weight {share:.3f}")  # fmt: skip
        drawing.text(134, place[i], f"{names[i]}  {i}", anchor="end")
        drawing.text(404, place[i], f"{names[i]}  {i}", anchor="end", bold=i == row)
    draw_cells(drawing, weights, names, row, place, high)
    return drawing


def draw_lines(drawing, weights, names, row, place) -> None:
    """A line from every query to each key it reads; those of the chosen query stand out."""
    for i in [*(i for i in range(len(names)) if i != row), row]:
        colour, width, opacity = (COLOURS["blue"], 8, 0.9) if i == row else ("#9A9A9A", 4, 0.2)
        for j in range(i + 1):
            if weights[i][j] >= 0.02:
                drawing.line(146, place[j], 286, place[i], colour, 0.4 + width * weights[i][j], opacity,
                             hover=f"{names[i]} → {names[j]}: {weights[i][j]:.3f}")  # fmt: skip


def draw_cells(drawing, weights, names, row, place, high) -> None:
    """The map itself: later keys are grey, the chosen row is framed, columns carry the keys' numbers."""
    n, left = len(names), 428
    wide = min(high, 366 / n)
    for i in range(n):
        for j in range(n):
            words = f"{names[i]} → {names[j]}: " + (f"{weights[i][j]:.3f}" if j <= i else "later, so never seen")
            drawing.rect(left + j * wide, place[i] - high / 2, wide - 1, high - 1, hover=words,
                         fill=colour_of(weights[i][j]) if j <= i else "#E4E4E4")  # fmt: skip
            if wide > 36 and j <= i:  # room for a number
                ink = "#111111" if weights[i][j] > 0.5 else "#FFFFFF"
                drawing.text(
                    left + (j + 0.5) * wide,
                    place[i],
                    "1" if weights[i][j] > 0.995 else f"{weights[i][j]:.2f}"[1:],
                    colour=ink,
                )
    top = place[row] - high / 2 - 0.5
    for y in (top, top + high):
        drawing.line(left - 1, y, left + n * wide, y, COLOURS["red"], 2.5)
    for j in range(0, n, math.ceil(22 / wide)):  # room for a number of two digits
        drawing.text(left + (j + 0.5) * wide, place[0] - high / 2 - 12, j)
