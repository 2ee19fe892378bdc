"""The four switches of notebook 11: the block that they make, what it stores, and how it learned."""

import ipywidgets as widgets

from transformer_lib.accounting import count_parameters
from transformer_lib.config import TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer
from transformer_lib.explorers.charts import Chart
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.explorers.model_picture import model_drawing
from transformer_lib.plots.style import COLOURS

# {switch: (its name, 2017, today)}, in the order in which a rung's name lists them
SWITCHES = {
    "rope": ("positions", "sinusoids", "RoPE"),
    "norm": ("norm", "post, LayerNorm", "pre, RMSNorm"),
    "swiglu": ("MLP", "ReLU", "SwiGLU"),
    "decoder": ("stacks", "encoder + decoder", "decoder only"),
}
START, NOW, REST = COLOURS["blue"], COLOURS["red"], "#B5B5B5"
CHART = 262  # pixels of height for the curves


def four_switches(configs: dict[str, TransformerConfig], runs: dict[str, list[dict]]) -> HtmlExplorer:
    """Every combination of the substitutions.

    configs: {rung: its config}, a rung being called "rope + swiglu", or "2017" where no switch is on.
    runs: {rung: [stored results with "curve" and "loss"]}; a rung without any is drawn without curves.
    """

    def draw(**today):
        name = " + ".join(switch for switch in SWITCHES if today[switch]) or "2017"
        cfg = configs[name]
        model = model_drawing(cfg)
        drawing = Drawing(model.width, model.height + CHART, model.parts)
        total = count_parameters(cfg).total
        words = f"{name}: {total:,} parameters, MLP of width {cfg.ff_width}"
        if not runs.get(name):
            drawing.text(400, model.height + 60, "No stored runs of this model: `make experiments` trains all sixteen.")
            return drawing, f"{words}; not trained yet."
        draw_losses(drawing, model.height + 40, name, runs)
        losses = [run["loss"] for run in runs[name]]
        mean, first = sum(losses) / len(losses), [run["loss"] for run in runs.get("2017", [])]
        change = f", {mean - sum(first) / len(first):+.2f} to 2017" if first and name != "2017" else ""
        return drawing, (
            f"{words}; loss {mean:.2f} nats per token over {len(losses)} seeds ({min(losses):.2f} to "
            f"{max(losses):.2f}){change}."
        )

    controls = {
        switch: widgets.ToggleButtons(options=[(old, False), (new, True)], value=False, description=name)
        for switch, (name, old, new) in SWITCHES.items()
    }
    return HtmlExplorer(draw, controls, title="From 2017 to Llama in four switches", name="four_switches")


def draw_losses(drawing: Drawing, top: float, name: str, runs: dict[str, list[dict]]) -> None:
    """Left: training losses of this rung, each seed, between those of 2017 and of all four. Right: all rungs."""
    last = " + ".join(SWITCHES)
    steps = runs[name][0]["curve"][-1][0]
    shown = {key: colour for key, colour in (("2017", START), (last, COLOURS["green"]), (name, NOW)) if runs.get(key)}
    highest = max(loss for key in shown for run in runs[key] for _, loss in run["curve"])
    chart = Chart(drawing, 52, top, 400, 170, (0, steps), (0, highest))
    ticks = {k: str(k) for k in range(0, int(highest) + 1, 2)}
    chart.frame(
        {0: "0", steps // 2: f"{steps // 2}", steps: f"{steps}"}, ticks, "step", "training loss, nats per token"
    )
    for key, colour in shown.items():
        for run in runs[key]:
            chart.curve(run["curve"], colour, 3 if key == name else 1.5, hover=f"{key}: loss {run['loss']:.2f}")
    means = {key: sum(run["loss"] for run in found) / len(found) for key, found in runs.items() if found}
    low, high = min(means.values()), max(means.values())
    room = max(0.1 * (high - low), 0.05)
    ranked = Chart(drawing, 520, top, 250, 170, (0, len(means) + 1), (low - room, high + room))
    ends = {value: f"{value:.2f}" for value in (low, high)}
    ranked.frame({}, ends, f"all {len(means)}, best to the right", "loss on fresh stories")
    for place, (key, mean) in enumerate(sorted(means.items(), key=lambda item: -item[1]), start=1):
        ranked.dot(place, mean, shown.get(key, REST), f"{key}: {mean:.2f}", 13 if key == name else 9)
    for row, (key, colour) in enumerate(shown.items()):
        words = "all four" if key == last else key
        drawing.text(444, top + 10 + 20 * row, words, anchor="end", colour=colour, bold=key == name)
