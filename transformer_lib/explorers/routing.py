"""Notebook 11: which experts each token of the learner's text is sent to."""

import ipywidgets as widgets
import matplotlib
import torch

from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record
from transformer_lib.relatives.moe import MoETransformer, expert_load

LONGEST = 20  # tokens that the map has room for
LEFT, BARS, HIGH = 104, 640, 19  # pixels: where the tokens begin, and the loads; a row's height


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
        wide = min(54.0, (BARS - LEFT - 20) / max(len(tokens), 1))
        drawing = Drawing(800, 96 + model.cfg.n_layers * (n * HIGH + 34))
        busiest = []
        for layer in range(model.cfg.n_layers):
            router, chosen = (seen[f"blocks.{layer}.mlp.{tap}"] for tap in ("router", "chosen"))  # (1, T, E), (1, T, k)
            kept = router.gather(-1, chosen)
            weights = torch.zeros_like(router).scatter(-1, chosen, kept / kept.sum(dim=-1, keepdim=True))[0]  # (T, E)
            load = expert_load(chosen, n)  # (E,)
            draw_layer(drawing, layer, 34 + layer * (n * HIGH + 34), tokens, wide, weights, router[0], load, show)
            busiest.append(f"layer {layer}: expert {int(load.argmax())} with {float(load.max()):.0%} of the choices")
        for column, token in enumerate(tokens):
            name_below(drawing, LEFT + (column + 0.5) * wide, drawing.height - 70, column, token)
        return (
            drawing,
            f"{len(ids)} tokens, {model.cfg.n_active} of {n} experts each. Busiest, {'; '.join(busiest)}{note}.",
        )

    controls = {
        "sentence": widgets.Text(sentence, description="sentence (Enter)"),
        "show": widgets.ToggleButtons(options=["chosen", "all probabilities"], value="chosen", description="show"),
    }
    return HtmlExplorer(draw, controls, title="Which experts does each token meet?", name="routing_map")


def draw_layer(drawing: Drawing, layer: int, top: float, tokens, wide, weights, router, load, show: str) -> None:
    """One layer's rows and loads. wide: pixels of a cell; weights, router: (T, E); load: (E,)."""
    n = weights.shape[1]
    drawing.text(4, top - 12, f"layer {layer}", anchor="start", bold=True)
    drawing.text(BARS, top - 12, "share of choices", anchor="start", bold=True)
    for expert in range(n):
        y = top + expert * HIGH
        drawing.text(LEFT - 8, y + HIGH / 2, f"expert {expert}", anchor="end")
        for column, token in enumerate(tokens):
            weight, p = float(weights[column, expert]), float(router[column, expert])
            used = f"used with the weight {weight:.2f}" if weight else "not used"
            value = weight if show == "chosen" else p
            tint = matplotlib.colors.to_hex([1 - value * (1 - c) for c in (0.0, 0.35, 0.6)])
            drawing.rect(
                LEFT + column * wide, y, wide - 1, HIGH - 1, tint if value else "#F1F1F1",
                hover=f"{token}, expert {expert}: probability {p:.2f}, {used}",
            )  # fmt: skip
        drawing.rect(BARS, y + 3, 110 * float(load[expert]), HIGH - 6, COLOURS["orange"],
                     hover=f"expert {expert}: {float(load[expert]):.0%} of the choices")  # fmt: skip
    even = BARS + 110 / n
    drawing.line(even, top, even, top + n * HIGH, COLOURS["black"], 1.5, hover=f"an even share: {1 / n:.1%}")


def name_below(drawing: Drawing, x: float, y: float, column: int, token: str) -> None:
    """A token's name below its column, on one of three lines, so that neighbours have room."""
    line = column % 3
    drawing.line(x, y - 8, x, y + 8 + 20 * line, "#C9C9C9", 1)
    drawing.text(x, y + 16 + 20 * line, token)
