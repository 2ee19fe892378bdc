"""How the mask painter is drawn: the mask, the layers that each pair needs, and the paths into one position."""

from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS

SEEN, HIDDEN, PADDED = COLOURS["blue"], "#E4E4E4", "#F3D9A4"
DEPTHS = ("#08306B", "#08519C", "#2171B5", "#4292C6", "#6BAED6", "#9ECAE1", "#C6DBEF")  # 0 … 6 layers
TOP, CELL = 54, 24


def painter_drawing(mask, needed, layers: int, query: int, names, flips, real: int) -> Drawing:
    """mask: (T, T) bool; needed: (T, T) layers until i has heard of j; flips: pairs drawn with a frame.

    query: the position that is followed. real: the number of tokens before the padding.
    """
    t = len(names)
    size = t * CELL
    drawing = Drawing(800, TOP + size + 40)
    place = [TOP + (i + 0.5) * CELL for i in range(t)]
    for i, name in enumerate(names):
        drawing.text(78, place[i], f"{name} {i}", anchor="end", size=14, bold=i == query)
    draw_mask(drawing, 84, mask, names, flips, real)
    draw_needed(drawing, 84 + size + 28, needed, layers, names, real)
    for left in (84, 84 + size + 28):
        for y in (TOP + query * CELL, TOP + (query + 1) * CELL):
            drawing.line(left - 1, y - 0.5, left + size, y - 0.5, COLOURS["black"], 2)
    draw_paths(drawing, 84 + 2 * size + 62, mask, needed, layers, query, real)
    draw_key(drawing, TOP + size + 22)
    return drawing


def head(drawing: Drawing, left: float, title: str, t: int, step: float = CELL) -> None:
    drawing.text(left, 14, title, anchor="start", bold=True, size=14)
    for j in range(t):
        drawing.text(left + (j + 0.5) * step, TOP - 12, j, size=13)


def draw_mask(drawing: Drawing, left: float, mask, names, flips, real: int) -> None:
    t = len(names)
    head(drawing, left, "mask: query ↓, key →", t)
    for i in range(t):
        for j in range(t):
            seen = bool(mask[i, j])
            fill = SEEN if seen else PADDED if j >= real else HIDDEN
            words = f"{names[i]} {i} {'sees' if seen else 'does not see'} {names[j]} {j}"
            words += " (padding)" if j >= real else ""
            drawing.rect(left + j * CELL, TOP + i * CELL, CELL - 2, CELL - 2, fill=fill, hover=words, radius=2)
            if (i, j) in flips:
                drawing.rect(left + j * CELL + 5, TOP + i * CELL + 5, CELL - 12, CELL - 12, fill="#FFFFFF", radius=3)
                drawing.rect(left + j * CELL + 7, TOP + i * CELL + 7, CELL - 16, CELL - 16, fill=fill, radius=2)


def draw_needed(drawing: Drawing, left: float, needed, layers: int, names, real: int) -> None:
    t = len(names)
    head(drawing, left, "layers to hear of it", t)
    for i in range(t):
        for j in range(t):
            n = int(needed[i, j])
            reached, leak = n <= layers, i < j < real and n <= layers
            words = f"{names[i]} {i} " + (f"hears of {names[j]} {j} in {n}" if reached else f"not of {names[j]} {j}")
            words += ": from its future" if leak else ""
            drawing.rect(left + j * CELL, TOP + i * CELL, CELL - 2, CELL - 2, radius=2, hover=words,
                         fill=COLOURS["red"] if leak else DEPTHS[n] if reached else HIDDEN)  # fmt: skip
            if reached:
                ink = "#FFFFFF" if leak or n < 4 else "#111111"
                drawing.text(left + (j + 0.5) * CELL - 1, TOP + (i + 0.5) * CELL - 1, n, size=13, colour=ink)


def draw_paths(drawing: Drawing, left: float, mask, needed, layers: int, query: int, real: int) -> None:
    """The blocks as rows, inputs at the bottom; every way from an input to the followed query stands out."""
    t = len(mask)
    wide, bottom = (792 - left) / t, TOP + t * CELL - 16
    head(drawing, left, "ways into the query", t, wide)
    drawing.text(left + t * wide / 2, bottom + 18, "bottom: inputs; a row per layer", size=13, colour="#555555")
    height = [bottom - n * (bottom - TOP - 14) / layers for n in range(layers + 1)]
    x = [left + (j + 0.5) * wide for j in range(t)]
    for n in range(layers):  # from row n up to row n + 1
        heard = [bool(needed[query, i] <= layers - n - 1) for i in range(t)]
        for strong in (False, True):
            for i in range(t):
                for j in range(t):
                    if (mask[i, j] or i == j) and heard[i] == strong:
                        style = (COLOURS["blue"], 1.8, 0.8) if strong else ("#9A9A9A", 1.0, 0.3)
                        drawing.line(x[j], height[n], x[i], height[n + 1], *style)
    for n in range(layers + 1):
        for i in range(t):
            on = bool(needed[query, i] <= layers - n)
            future = on and n == 0 and query < i < real
            fill = COLOURS["red"] if future else COLOURS["blue"] if on else "#C9C9C9"
            drawing.rect(x[i] - 4, height[n] - 4, 8, 8, fill=fill, radius=4, hover=f"position {i} after {n} layers")


def draw_key(drawing: Drawing, y: float) -> None:
    at = 84
    for colour, words, room in (
        (SEEN, "stays", 70),
        (HIDDEN, "hidden", 78),
        (PADDED, "hidden: the key is padding", 214),
        (COLOURS["red"], "heard from the future", 250),
    ):
        drawing.rect(at, y - 6, 12, 12, fill=colour, radius=2)
        drawing.text(at + 18, y, words, anchor="start", size=14)
        at += room
