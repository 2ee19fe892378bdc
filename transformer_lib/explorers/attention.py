"""Explorers of notebook 02: three tokens with movable queries and keys, a soft dictionary, the toy's attention."""

import math

import ipywidgets as widgets
import matplotlib
import numpy as np
import torch

from transformer_lib.attention import attention_weights
from transformer_lib.explorers.base import Explorer, HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.attention import TOKEN_COLOURS, Arrows, Hull, plane
from transformer_lib.plots.style import COLOURS, SEQUENTIAL
from transformer_lib.plots.tokens import heat, readable
from transformer_lib.recording import record

LONGEST = 24  # tokens that a map has room for


def turned(vectors, degrees) -> torch.Tensor:
    """(T, 2): each vector turned about the origin, anticlockwise, by its own angle."""
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))  # (T,)
    x, y = torch.as_tensor(vectors, dtype=torch.float64).T
    return torch.stack((x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()), dim=1)  # (T, 2)


def three_tokens(q, k, v, tokens) -> Explorer:
    """Turn the queries and keys of three tokens and watch scores, weights and outputs. q, k, v: (3, 2)."""
    values = torch.as_tensor(v, dtype=torch.float64)

    def build(fig):
        (arrows, scores_ax), (hull_ax, weights_ax) = fig.subplots(2, 2, width_ratios=(1.25, 1))
        plane(arrows, 4.2)
        arrows.set_title("1  queries (filled) and keys (hollow)")
        keys = Arrows(arrows, 3, hollow=True, colours=TOKEN_COLOURS, names=[f"k {token}" for token in tokens])
        queries = Arrows(arrows, 3, colours=TOKEN_COLOURS, names=[f"q {token}" for token in tokens])
        style = {"row_labels": tokens, "col_labels": tokens, "xlabel": "key", "ylabel": "query", "numbers": ".2f"}
        blank = np.zeros((3, 3))
        scores = heat(scores_ax, blank, title="2  scores ÷ √d_k", limits=(-6, 6), diverging=True, **style)
        weights = heat(weights_ax, blank, title="3  weights: softmax by row", limits=(0, 1), **style)
        hull = Hull(hull_ax, values.numpy(), tokens)
        hull_ax.set(title="4  each token's output is a mix of the values", xlabel="component 0", ylabel="component 1")
        hull_ax.margins(0.28)

        def update(stretch, **turns):
            turned_q = stretch * turned(q, [turns[f"q{i}"] for i in range(3)])
            turned_k = turned(k, [turns[f"k{i}"] for i in range(3)])
            queries.set(turned_q.numpy())
            keys.set(turned_k.numpy())
            a = attention_weights(turned_q, turned_k)  # (3, 3)
            scores.set(turned_q @ turned_k.T / math.sqrt(2))
            weights.set(a)
            hull.set(a.numpy())
            return spoken(a, a @ values, tokens)

        return update

    names = [("q", "query"), ("k", "key")]
    controls = {
        f"{short}{i}": widgets.IntSlider(0, -180, 180, 5, description=f"turn {word} of {token} (°)")
        for i, token in enumerate(tokens)
        for short, word in names
    }
    controls["stretch"] = widgets.FloatSlider(1.0, min=0.0, max=2.0, step=0.1, description="length of all queries ×")
    title = "Directions decide who is looked at; the output never leaves the triangle"
    return Explorer(build, controls, title=title, name="three_tokens", figsize=(8, 6.6))


def spoken(weights, outputs, tokens) -> str:
    """Who looks where most, in one line."""
    best = weights.argmax(dim=1).tolist()
    parts = [
        f"{token} → {tokens[j]} {weights[i, j]:.2f}, output ({outputs[i, 0]:.2f}, {outputs[i, 1]:.2f})"
        for i, (token, j) in enumerate(zip(tokens, best, strict=True))
    ]
    return "Largest weight of each query: " + "; ".join(parts).replace("-", "−") + "."


def soft_dictionary(entries: dict) -> Explorer:
    """Look up a direction among the four winds, softly. entries: {name: number}, north first, clockwise."""
    names, numbers = list(entries), torch.tensor(list(entries.values()), dtype=torch.float64)
    bearings = torch.arange(len(names), dtype=torch.float64) * 360 / len(names)
    keys = compass(bearings)  # (n, 2), length 1

    def build(fig):
        grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.35))
        rose, bars_ax, curve_ax = (fig.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1]))
        rose.set(xlim=(-1.75, 1.75), ylim=(-1.75, 1.75), aspect="equal", title="keys (hollow) and query (black)")
        rose.set_axis_off()
        rose.add_patch(matplotlib.patches.Circle((0, 0), 1, fill=False, ec="#CCCCCC"))
        colours = TOKEN_COLOURS[: len(names)]
        Arrows(rose, len(names), hollow=True, colours=colours, names=names).set(keys.numpy())
        arrow = Arrows(rose, 1, colours=[COLOURS["black"]], names=[""])
        bars = bars_ax.bar(names, [0] * len(names), color=colours)
        bars_ax.set(ylim=(0, 1.12), ylabel="weight", title="weights of the entries")
        (curve,) = curve_ax.plot([], [], color=COLOURS["black"], label="soft")
        (dot,) = curve_ax.plot([], [], "o", color=COLOURS["black"], ms=9)
        around = torch.arange(0, 361, 3, dtype=torch.float64)
        nearest = numbers[(compass(around) @ keys.T).argmax(dim=1)]
        curve_ax.plot(around, nearest, color=COLOURS["red"], ls=":", lw=2.4, label="hard (nearest key)", zorder=1)
        low, high = float(numbers.min()), float(numbers.max())
        curve_ax.set(xlim=(0, 360), ylim=(low - 2, high + 8), xticks=[0, 90, 180, 270, 360], ylabel="degrees C",
                     xlabel="direction of the query (° from north)", title="what the look-up returns")  # fmt: skip
        curve_ax.legend(loc="upper left", ncols=2, borderaxespad=0.2)

        def update(direction, length):
            query = compass(torch.tensor([float(direction)], dtype=torch.float64))  # (1, 2)
            arrow.set(query.numpy() * min(1.0, 0.25 + 0.03 * length))  # short and long enough to be seen
            weights = attention_weights(length * query, keys)[0]  # (n,)
            for bar, weight in zip(bars, weights.tolist(), strict=True):
                bar.set_height(weight)
            curve.set_data(around, attention_weights(length * compass(around), keys) @ numbers)
            answer = float(weights @ numbers)
            dot.set_data([direction], [answer])
            first, second = torch.sort(length * (query @ keys.T)[0] / math.sqrt(2), descending=True).values[:2]
            best = names[int(weights.argmax())]
            return (
                f"Best key: {best}, score {first:.2f}, {first - second:.2f} above the next: "
                f"weight {weights.max():.2f}. The look-up returns {answer:.1f} degrees; {best} alone holds {entries[best]}."
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
    angles = torch.deg2rad(bearings)
    return torch.stack((angles.sin(), angles.cos()), dim=1)  # (n, 2)


def attention_map(model, tokenizer, text: str) -> HtmlExplorer:
    """Any head of any layer on the learner's own text: lines for one query, and the whole map."""
    layers, heads = model.cfg.n_layers, model.cfg.n_heads
    seen_before: dict[str, list] = {}

    def look(typed: str):
        """(tokens, weights per layer (H, T, T)) of a text; only the last text is kept."""
        if typed not in seen_before:
            ids = tokenizer.encode(typed)[:LONGEST]
            with torch.no_grad(), record(model) as seen:
                model(torch.tensor([ids]))
            maps = [seen[f"blocks.{i}.attention.weights"][0].numpy() for i in range(layers)]
            seen_before.clear()
            seen_before[typed] = tokenizer.pieces(typed)[:LONGEST], maps
        return seen_before[typed]

    def draw(sentence, layer, head, row):
        typed, note = clip_text(sentence, instead=text)
        tokens, maps = look(typed)
        cut = len(tokens) == LONGEST and len(tokenizer.pieces(typed)) > LONGEST
        note += f" (only the first {LONGEST} tokens are drawn)" if cut else ""
        row = min(row, len(tokens) - 1)
        weights = maps[layer][head]  # (T, T)
        best = int(weights[row].argmax())
        summary = (
            f"Layer {layer}, head {head}: query {row}, {readable(tokens[row])}, gives most of its weight to key {best}, "
            f"{readable(tokens[best])}: {weights[row, best]:.2f} of 1; an even share would be {1 / (row + 1):.2f}.{note}"
        )
        return attention_drawing(weights, tokens, row), summary

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "layer": widgets.Dropdown(options=range(layers), value=layers - 1, description="layer"),
        "head": widgets.Dropdown(options=range(heads), value=0, description="head"),
        "row": widgets.IntSlider(LONGEST - 1, 0, LONGEST - 1, description="query (row)"),
    }
    return HtmlExplorer(draw, controls, title="Who looks at whom, in a model you trained", name="attention_map")


def colour_of(weight: float) -> str:
    """The course's colour of a weight between 0 and 1, as #RRGGBB."""
    return matplotlib.colors.to_hex(matplotlib.colormaps[SEQUENTIAL](float(weight)))


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
        colour, width, opacity = (COLOURS["blue"], 8, 0.9) if i == row else ("#9A9A9A", 4, 0.25)
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
    top = place[row] - high / 2 - 0.5
    for y in (top, top + high):
        drawing.line(left - 1, y, left + n * wide, y, COLOURS["red"], 2.5)
    for j in range(0, n, math.ceil(22 / wide)):  # room for a number of two digits
        drawing.text(left + (j + 0.5) * wide, 40, j)
