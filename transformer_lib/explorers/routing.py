"""Notebook 11: which experts each token of the learner's text is sent to."""

import ipywidgets as widgets
import torch

from transformer_lib.explorers.attention import colour_of
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record
from transformer_lib.relatives.moe import MoETransformer, expert_load

LONGEST = 20  # tokens that the map has room for
LEFT, CELL, HIGH = 104, 26, 19  # pixels: where the tokens begin, a cell's width and height
BARS = LEFT + LONGEST * CELL + 22  # where the loads begin


def routing_map(model: MoETransformer, tokenizer, sentence: str) -> HtmlExplorer:
    """A row per expert of each layer, a column per token: the weight of the expert for the token; and the loads."""
    n = model.cfg.n_experts

    def draw(sentence, show):
        text, note = clip_text(sentence)
        ids = tokenizer.encode(text)
        if len(ids) > LONGEST:
            ids, note = ids[:LONGEST], f" (only the first {LONGEST} of {len(ids)} tokens are shown)"
        with torch.no_grad(), record(model) as seen:
            model(torch.tensor([ids]))
        tokens = [readable(tokenizer.decode([i])) for i in ids]
        drawing = Drawing(800, 96 + model.cfg.n_layers * (n * HIGH + 34))
        busiest = []
        for layer in range(model.cfg.n_layers):
            router, chosen = (seen[f"blocks.{layer}.mlp.{tap}"] for tap in ("router", "chosen"))  # (1, T, E), (1, T, k)
            kept = router.gather(-1, chosen)
            weights = torch.zeros_like(router).scatter(-1, chosen, kept / kept.sum(dim=-1, keepdim=True))[0]  # (T, E)
            load = expert_load(chosen, n)  # (E,)
            draw_layer(drawing, layer, 34 + layer * (n * HIGH + 34), tokens, weights, router[0], load, show)
            busiest.append(f"layer {layer}: expert {int(load.argmax())} with {float(load.max()):.0%} of the choices")
        for column, token in enumerate(tokens):
            upright(drawing, LEFT + (column + 0.5) * CELL, drawing.height - 70, column, token)
        return (
            drawing,
            f"{len(ids)} tokens, {model.cfg.n_active} of {n} experts each. Busiest, {'; '.join(busiest)}{note}.",
        )

    controls = {
        "sentence": widgets.Text(sentence, description="sentence (Enter)"),
        "show": widgets.ToggleButtons(options=["chosen", "all probabilities"], value="chosen", description="show"),
    }
    return HtmlExplorer(draw, controls, title="Which experts does each token meet?", name="routing_map")


def draw_layer(drawing: Drawing, layer: int, top: float, tokens, weights, router, load, show: str) -> None:
    """One layer's rows, and beside each row its share of all choices. weights, router: (T, E); load: (E,)."""
    n = weights.shape[1]
    drawing.text(4, top - 12, f"layer {layer}", anchor="start", bold=True)
    drawing.text(BARS, top - 12, "share of the choices", anchor="start", bold=True)
    for expert in range(n):
        y = top + expert * HIGH
        drawing.text(LEFT - 8, y + HIGH / 2, f"expert {expert}", anchor="end")
        for column, token in enumerate(tokens):
            weight, p = float(weights[column, expert]), float(router[column, expert])
            used = f"used with the weight {weight:.2f}" if weight else "not used"
            value = weight if show == "chosen" else p
            drawing.rect(
                LEFT + column * CELL, y, CELL - 1, HIGH - 1, colour_of(value) if value else "#EDEDED",
                hover=f"{token}, expert {expert}: probability {p:.2f}, {used}",
            )  # fmt: skip
        drawing.rect(BARS, y + 3, 110 * float(load[expert]), HIGH - 6, COLOURS["orange"],
                     hover=f"expert {expert}: {float(load[expert]):.0%} of the choices")  # fmt: skip
    even = BARS + 110 / n
    drawing.line(even, top, even, top + n * HIGH, COLOURS["black"], 1.5, hover=f"an even share: {1 / n:.1%}")


def upright(drawing: Drawing, x: float, y: float, column: int, token: str) -> None:
    """A token's name below its column, on one of three lines, so that neighbours have room."""
    line = column % 3
    drawing.line(x, y - 8, x, y + 8 + 20 * line, "#C9C9C9", 1)
    drawing.text(x, y + 16 + 20 * line, token)
