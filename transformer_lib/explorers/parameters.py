"""Explorers of notebook 09: a map of all weights by area, and what the learner's own sentence costs in the toy."""

import functools
import math

import ipywidgets as widgets
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib.accounting import count_parameters, flops_per_sequence, flops_per_token
from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.parameters import PART_COLOURS, ink, part_of, squarify
from transformer_lib.plots.style import COLOURS
from transformer_lib.recording import record

SIDE = 64  # rows that the square of pairs is drawn with at most


def weight_map(start: str = "llama2-7b") -> HtmlExplorer:
    """Every tensor of a model as an area: the numbers that it stores, or the FLOPs that it costs a token."""

    def draw(model, area):
        cfg, flops = PRESETS[model], area != "parameters"
        leaves = flop_leaves(cfg) if flops else parameter_leaves(cfg)
        totals = dict.fromkeys(PART_COLOURS, 0)
        for _, part, _, _, size in leaves:
            totals[part] += size
        whole = sum(totals.values())
        unit = f"FLOPs for token {cfg.max_seq_len:,}" if flops else "parameters"
        listed = ", ".join(
            f"{part} {size / whole:.1%}".replace(" 0.0%", " under 0.1%") for part, size in totals.items() if size
        )
        return tree_drawing(leaves, totals), f"{model}: {whole:,} {unit}: {listed}."

    controls = {
        "model": widgets.ToggleButtons(options=list(PRESETS), value=start, description="model"),
        "area": widgets.ToggleButtons(options=("parameters", "FLOPs of the last token"), description="area"),
    }
    return HtmlExplorer(draw, controls, title="Every tensor, as large as its share", name="weight_map")


def parameter_leaves(cfg: TransformerConfig) -> list[tuple]:
    """(block or table, part, tensor, shape in words, size) of each stored tensor."""
    return [
        (row.part, part_of(row), row.tensor, " × ".join(f"{n:,}" for n in row.shape), row.count)
        for row in count_parameters(cfg).rows
    ]


def flop_leaves(cfg: TransformerConfig) -> list[tuple]:
    """(block or table, part, product, its shape in words, FLOPs) for the last token of the longest sequence."""
    found = [
        (place, part, tensor, shape, 2 * size)
        for place, part, tensor, shape, size in parameter_leaves(cfg)
        if "×" in shape and part in ("attention", "MLP")
    ]
    places = list(dict.fromkeys(leaf[0] for leaf in found))
    attention = flops_per_token(cfg, cfg.max_seq_len).attention
    weight = {place: 2 if cfg.n_encoder_layers and not place.startswith("encoder") else 1 for place in places}
    for place in places:
        share = attention * weight[place] // sum(weight.values())
        found.append((place, "scores and averages", "scores", f"{cfg.max_seq_len:,} keys", share))
    size = cfg.vocab_size * cfg.d_model
    found.append(("unembedding", "unembedding", "weight", f"{cfg.vocab_size:,} × {cfg.d_model:,}", 2 * size))
    return found


def tree_drawing(leaves, totals) -> Drawing:
    """Blocks and tables as tiles, their parts inside, their tensors inside these; the parts' totals above."""
    drawing = Drawing(800, 560)
    whole, x = sum(totals.values()), 8.0
    for part, size in totals.items():
        if size:
            words = f"{part} {size / whole:.0%}" if size / whole >= 0.005 else f"{part} {size / whole:.2%}"
            drawing.rect(x, 8, 14, 14, fill=PART_COLOURS[part])
            drawing.text(x + 19, 15, words, anchor="start")
            x += 36 + 9.0 * len(words)
    stacks = grouped(leaves, lambda leaf: leaf[0].rstrip("0123456789"))
    for stack, *whole_place in tiled(stacks, 4, 32, 792, 524):
        blocks = grouped(stack, lambda leaf: leaf[0])
        for block, *block_place in zip(blocks, grid(len(blocks), *whole_place), strict=True):
            for part, *place in tiled(grouped(block, lambda leaf: leaf[1]), *block_place[0]):
                leaves_placed = tiled([[leaf] for leaf in part], *place)
                large = [(leaf, *at) for (leaf,), *at in leaves_placed if leaf[-1] > 0.05 * part_size(part)]
                named = all(has_room(tile_name(leaf), width, height) for leaf, _, _, width, height in large)
                for (leaf,), *leaf_place in leaves_placed:
                    tensor_tile(drawing, leaf, *leaf_place, named)
                if not named and has_room(part[0][1], *place[2:]):
                    x, y, colour = place[0] + place[2] / 2, place[1] + place[3] / 2, ink(PART_COLOURS[part[0][1]])
                    drawing.text(x, y, part[0][1], colour=colour)
    return drawing


def part_size(part) -> int:
    return sum(leaf[-1] for leaf in part)


def has_room(name: str, width: float, height: float) -> bool:
    """Whether a name fits into a tile with some space around it."""
    return height > 19 and width > 9.4 * len(name) + 8


def tile_name(leaf) -> str:
    place, part, tensor, *_ = leaf
    name = place if part in ("embedding", "unembedding") else "positions" if part == "positions" else tensor
    return name.removesuffix(".weight").split(".")[-1]


def grouped(leaves, key) -> list[list]:
    """The leaves with the same key, together, in the order of their first appearance."""
    groups: dict = {}
    for leaf in leaves:
        groups.setdefault(key(leaf), []).append(leaf)
    return list(groups.values())


def tiled(groups, x, y, width, height) -> list[tuple]:
    """(group, x, y, width, height): groups of leaves that fill a rectangle, each as large as its leaves."""
    places = squarify([sum(leaf[-1] for leaf in group) for group in groups], x, y, width, height)
    return [(group, *place) for group, place in zip(groups, places, strict=True)]


def grid(n: int, x, y, width, height, inset: float = 2.0) -> list[tuple]:
    """n equal tiles in rows and columns, as square as can be, with a margin around each."""
    columns = min((c for c in range(1, n + 1) if n % c == 0), key=lambda c: abs(math.log(width * n / c / c / height)))
    wide, high = width / columns, height * columns / n
    size = (max(wide - inset, 0.1), max(high - inset, 0.1))
    return [(x + inset / 2 + wide * (i % columns), y + inset / 2 + high * (i // columns), *size) for i in range(n)]


def tensor_tile(drawing, leaf, x, y, width, height, named: bool) -> None:
    """One tensor, everything about it under the mouse; its name, if its part's tensors are named and there is room."""
    place, part, tensor, shape, size = leaf
    gap = 0.7 if named else 0.25  # faint under the name of the whole part
    drawing.rect(x, y, max(width - gap, 0.2), max(height - gap, 0.2), fill=PART_COLOURS[part],
                 hover=f"{place}.{tensor}: {shape} = {size:,}" if part != "scores and averages" else
                 f"{place}, {tensor} and average over {shape}: {size:,}")  # fmt: skip
    name = tile_name(leaf)
    if named and has_room(name, width, height):
        drawing.text(x + width / 2, y + height / 2, name, colour=ink(PART_COLOURS[part]))
        if height > 60 and width > 9.2 * len(f"{size:,}") + 6:
            drawing.text(x + width / 2, y + height / 2 + 19, f"{size:,}", colour=ink(PART_COLOURS[part]))


def sentence_cost(model, tokenizer, text: str) -> HtmlExplorer:
    """The FLOPs of the learner's own sentence in the learner's own model: torch's count beside the closed form."""
    cfg = model.cfg

    @functools.lru_cache(maxsize=512)
    def counted(ids: tuple, path: str) -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            if path == "fused":
                model(torch.tensor([ids]))
            else:
                with record(model):
                    model(torch.tensor([ids]))
        return counter.get_total_flops()

    def draw(sentence, times, path):
        typed, note = clip_text(sentence, instead=text)
        ids = tokenizer.encode(typed) * times
        if len(ids) > cfg.max_seq_len:
            note += f" (only the first {cfg.max_seq_len} of {len(ids):,} tokens are used)"
        ids = ids[: cfg.max_seq_len]
        n, flops = len(ids), flops_per_sequence(cfg, len(ids))
        torchs = counted(tuple(ids), path)
        rows = {
            "products with weights": (flops.weights, PART_COLOURS["MLP"]),
            "pairs that are seen": (flops.attention, COLOURS["red"]),
            "pairs that the mask hides": (flops.masked, "#BBBBBB"),
        }
        missing = flops.weights + flops.attention + flops.masked - torchs
        summary = (
            f"{n} tokens, {n * n:,} pairs, {n * (n + 1) // 2:,} of them seen. Closed form: {flops.total:,} FLOPs, and "
            f"{flops.masked:,} for hidden pairs. torch counts {torchs:,}, "
            + ("all of these" if not missing else f"{missing:,} fewer: nothing inside the fused kernel")
            + f".{note}"
        )
        return cost_drawing(n, rows, torchs), summary

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "times": widgets.IntSlider(1, 1, 30, description="repeat it … times"),
        "path": widgets.ToggleButtons(options=("in the open", "fused"), description="attention"),
    }
    return HtmlExplorer(draw, controls, title="What your sentence costs in your model", name="sentence_cost")


def cost_drawing(n: int, rows: dict, torchs: int) -> Drawing:
    """The square of pairs, seen and hidden, on the left; the FLOPs of each kind, and torch's count, on the right."""
    drawing = Drawing(800, 296)
    side, steps = 236, min(n, SIDE)
    drawing.text(26, 14, f"{n} × {n} pairs, {n * (n + 1) // 2:,} of them seen", anchor="start", bold=True)
    for i in range(steps):
        y, high, seen = 32 + side * i / steps, side / steps, side * (i + 1) / steps
        last = round((i + 1) * n / steps) - 1
        drawing.rect(26, y, seen, high, fill=COLOURS["red"], hover=f"query {last} sees {last + 1} keys")
        drawing.rect(26 + seen, y, side - seen, high, fill="#BBBBBB", hover=f"and {n - 1 - last} are hidden")
        if steps <= 24:
            drawing.line(26, y, 26 + side, y, "#FFFFFF", 1)
            drawing.line(26 + seen, 32, 26 + seen, 32 + side, "#FFFFFF", 1)
    drawing.text(144, 282, "row = query, column = key")
    total, left, wide = sum(size for size, _ in rows.values()), 330, 455
    drawing.text(left, 14, "FLOPs of one forward pass", anchor="start", bold=True)
    for i, (name, (size, colour)) in enumerate(rows.items()):
        y = 32 + 50 * i
        drawing.text(left, y + 8, f"{name}: {size:,} ({size / total:.1%})", anchor="start")
        drawing.rect(left, y + 20, max(wide * size / total, 1), 18, fill=colour)
    drawing.line(left, 190, left + wide, 190)
    drawing.text(left, 206, f"closed form, all three: {total:,}", anchor="start")
    drawing.text(left, 232, f"torch's counter: {torchs:,}", anchor="start", bold=True,
                 colour=COLOURS["black"] if torchs == total else COLOURS["red"])  # fmt: skip
    drawing.text(left, 256, "✓ equal" if torchs == total else f"✗ {total - torchs:,} are missing", anchor="start")
    return drawing
