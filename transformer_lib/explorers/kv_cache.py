"""The stepper of notebook 10: prefill and decode one pass at a time, on the learner's model and text."""

import functools
from typing import NamedTuple

import ipywidgets as widgets
import torch

from transformer_lib.accounting import flops_per_token, gib, in_units, kv_cache_bytes
from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record

LONGEST = 12  # tokens of a prompt that there is room for
NEW = 8  # decode passes
LAYERS = 4  # layers whose cache there is room for
FLOPS = ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs")
TOP, LEFT, SIDE = 44, 100, 340  # pixels: the square of scores
# What a cell was in the pass that is shown.
FILLS = {
    "new": COLOURS["orange"],
    "reused": COLOURS["sky"],
    "again": COLOURS["red"],
    "done": "#D5D5D5",
    "future": "#FFFFFF",
}
LEGEND = {
    True: {"new": "computed", "reused": "read from the cache", "done": "computed before, no longer needed"},
    False: {"new": "computed for the first time", "again": "computed again, with the same result"},
}


class Pass(NamedTuple):
    """One forward pass with the cache: the tokens start … stop − 1 went in."""

    start: int
    stop: int
    off: float  # largest difference of its logits from those of a pass over everything
    best: int  # the likeliest next token
    probability: float


class Trace(NamedTuple):
    """A generation. ids: (T,), prompt and new tokens; off: (L, T), how far stored keys and values are from new ones."""

    prompt: int
    ids: list
    passes: list
    off: torch.Tensor


@torch.no_grad()
def generation_trace(model, prompt: list, chunk: int) -> Trace:
    """Prefill in chunks, then NEW decode passes, each compared with a pass that recomputes everything."""
    ids, passes = torch.tensor([prompt]), []  # (1, T)
    cache = model.new_cache(1, len(prompt) + NEW)
    while cache.length < len(prompt) + NEW:
        start = cache.length
        stop = min(start + chunk, len(prompt)) if start < len(prompt) else start + 1
        logits = model(ids[:, start:stop], cache=cache)  # (1, stop − start, V)
        off = (logits - model(ids[:, :stop])[:, start:]).abs().max()
        probability, best = torch.softmax(logits[0, -1], dim=-1).max(dim=-1)
        passes.append(Pass(start, stop, float(off), int(best), float(probability)))
        if len(prompt) <= stop < len(prompt) + NEW:
            ids = torch.cat([ids, best.view(1, 1)], dim=1)  # (1, T + 1)
    with record(model) as seen:
        model(ids)
    off = torch.stack([
        torch.maximum(
            (cache.keys[i] - seen[f"blocks.{i}.attention.k"]).abs().amax(dim=(0, 1, 3)),
            (cache.values[i] - seen[f"blocks.{i}.attention.v"]).abs().amax(dim=(0, 1, 3)),
        )
        for i in range(model.cfg.n_layers)
    ])  # (L, T)  # fmt: skip
    return Trace(len(prompt), ids[0].tolist(), passes, off)


def flops(cfg, start: int, stop: int) -> int:
    """The forward pass of the tokens start … stop − 1, whose keys include all earlier ones."""
    one, n = flops_per_token(cfg, 1), stop - start
    return n * one.weights + one.attention * (start * n + n * (n + 1) // 2)


def cache_stepper(model, tokenizer, text: str) -> HtmlExplorer:
    """Generate one pass at a time: which scores, keys and values are computed, which are reused, and what it costs."""

    @functools.lru_cache(maxsize=4)
    def follow(typed: str, chunk: int):
        """(trace, pieces of its tokens, a note on what was left out)"""
        used, note = clip_text(typed, instead=text)
        ids = tokenizer.encode(used)
        if len(ids) > LONGEST:
            note += f" (only the first {LONGEST} of {len(ids)} tokens are used)"
        trace = generation_trace(model, ids[:LONGEST], chunk)
        return trace, pieces_of(tokenizer, used, trace), note

    def draw(sentence, step, cached, chunk):
        trace, pieces, note = follow(sentence, chunk)
        last = len(trace.passes) - 1
        if controls["step"].max != last:
            controls["step"].max = last
        step = min(step, last)
        drawing = Drawing(800, TOP + SIDE + 42)
        square(drawing, trace, pieces, step, cached)
        stores(drawing, model.cfg, trace, pieces, step, cached)
        costs = cost_of(model.cfg, trace, step)
        meters(drawing, model.cfg, trace, pieces, step, cached, costs)
        legend(drawing, cached)
        return drawing, summary_of(trace, pieces, step, cached, costs) + note

    controls = {
        "sentence": widgets.Text(text, description="your prompt"),
        "step": widgets.IntSlider(1, 0, NEW, description="pass"),
        "cached": widgets.Checkbox(True, description="use the cache"),
        "chunk": widgets.IntSlider(LONGEST, 1, LONGEST, description="prompt tokens per pass"),
    }
    title = "Which numbers does each pass compute, and which does it reuse?"
    return HtmlExplorer(draw, controls, title=title, name="stepper")


def pieces_of(tokenizer, used: str, trace: Trace) -> list[str]:
    """Readable tokens: those of the prompt, of what was generated, and of what the last pass predicts."""
    found = [readable(piece, 9) for piece in tokenizer.pieces(used)[: trace.prompt]]
    for i in [*trace.ids[trace.prompt :], trace.passes[-1].best]:
        word = tokenizer.decode([i])
        found.append(readable(word if word.strip() else word or "?", 9))
    return found


def cost_of(cfg, trace: Trace, step: int) -> dict:
    """FLOPs with and without the cache, of this pass and of all up to it; bytes of cache read and written."""
    with_cache = [flops(cfg, p.start, p.stop) for p in trace.passes]
    without = [flops(cfg, 0, p.stop) for p in trace.passes]
    here, token = trace.passes[step], kv_cache_bytes(cfg, 1, bytes_per_number=4)
    return {
        True: with_cache[step],
        False: without[step],
        "sums": {True: sum(with_cache[: step + 1]), False: sum(without[: step + 1])},
        "most": max(without),
        "read": here.start * token,
        "written": (here.stop - here.start) * token,
    }


def square(drawing: Drawing, trace: Trace, pieces, step: int, cached: bool) -> None:
    """One row per query, one column per key; what this pass computed stands out."""
    here, n = trace.passes[step], len(trace.ids)
    size = SIDE / n
    drawing.text(LEFT, TOP - 22, "scores: query (row) × key (column)", anchor="start", bold=True)
    for i in range(n):
        y = TOP + i * size
        colour = COLOURS["black"] if i < trace.prompt else COLOURS["blue"]
        if i < here.stop:
            drawing.text(LEFT - 6, y + size / 2, pieces[i], anchor="end", colour=colour, bold=here.start <= i)
        elif i == here.stop:
            drawing.text(LEFT - 6, y + size / 2, f"→ {pieces[i]}", anchor="end", colour=COLOURS["green"], bold=True)
        for j in range(i + 1):
            state = state_of(i, here, cached, "done")
            words = f"query {pieces[i]} ({i}) × key {pieces[j]} ({j}): {SAID[state]}" if i < here.stop else ""
            edge = "#FFFFFF" if i < here.stop else "#E4E4E4"
            drawing.rect(LEFT + j * size, y, size, size, fill=FILLS[state], stroke=edge, hover=words)
    if here.stop == n:
        drawing.text(LEFT - 6, TOP + SIDE + 10, f"→ {pieces[n]}", anchor="end", colour=COLOURS["green"], bold=True)


SAID = {
    "new": "computed in this pass",
    "reused": "read from the cache",
    "again": "computed in an earlier pass, and again in this one",
    "done": "computed in an earlier pass; no later pass asks for it",
    "future": "",
}


def state_of(i: int, here: Pass, cached: bool, before: str) -> str:
    """What happened to token i's numbers in this pass; `before`: the state of earlier ones with the cache."""
    if i >= here.stop:
        return "future"
    if i >= here.start:
        return "new"
    return before if cached else "again"


def stores(drawing: Drawing, cfg, trace: Trace, pieces, step: int, cached: bool) -> None:
    """A key and a value per token and layer, on the rows of the square."""
    here, n = trace.passes[step], len(trace.ids)
    size, layers = SIDE / n, min(cfg.n_layers, LAYERS)
    width, gap, left = 80 / layers, 10, LEFT + SIDE + 16
    cell = width / 2 if layers > 2 else 20
    stored = kv_cache_bytes(cfg, 1, bytes_per_number=4) // (2 * cfg.n_layers)
    born = {i: k for k, p in enumerate(trace.passes) for i in range(p.start, p.stop)}
    for layer in range(layers):
        x = left + layer * (2 * cell + gap)
        drawing.text(x + cell, TOP - 22, f"layer {layer}", size=13)
        for k, (letter, word) in enumerate((("K", "key"), ("V", "value"))):
            drawing.text(x + (k + 0.5) * cell, TOP - 8, letter, size=13)
            for i in range(n):
                state = state_of(i, here, cached, "reused")
                words = "" if state == "future" else (
                    f"layer {layer}, {word} of {pieces[i]} ({i}): {SAID[state]}. {cfg.kv_heads} × {cfg.d_k} numbers, "
                    f"{stored:,} bytes, first computed in pass {born[i]}; differs from a new computation by at most "
                    f"{trace.off[layer, i]:.0e}."
                )  # fmt: skip
                edge = "#FFFFFF" if i < here.stop else "#E4E4E4"
                y = TOP + i * size
                drawing.rect(x + k * cell, y, cell, size, fill=FILLS[state], stroke=edge, hover=words)


def meters(drawing: Drawing, cfg, trace: Trace, pieces, step: int, cached: bool, costs: dict) -> None:
    """What the pass is, what it costs with and without the cache, and what comes out."""
    here, x, wide = trace.passes[step], 566, 226
    kind = "prefill" if here.start < trace.prompt else "decode"
    n = here.stop - here.start
    computed, taken = (n, here.start) if cached else (here.stop, 0)
    drawing.text(x, TOP - 22, f"pass {step}: {kind}", anchor="start", bold=True)
    words = f"{computed} token{'s' * (computed > 1)} in, {taken or 'none'} from cache"
    drawing.text(x, TOP + 6, words, anchor="start")
    drawing.text(x, TOP + 38, "FLOPs of this pass", anchor="start", bold=True)
    for k, (way, colour) in enumerate(((True, FILLS["new"]), (False, FILLS["again"]))):
        y = TOP + 50 + 42 * k
        chosen = way == cached
        words = f"{'with' if way else 'without'}: {in_units(costs[way], 1000, FLOPS)}"
        drawing.text(x, y + 9, words, anchor="start", bold=chosen)
        drawing.rect(x, y + 19, max(1, wide * costs[way] / costs["most"]), 15, fill=colour,
                     stroke=COLOURS["black"] if chosen else "none")  # fmt: skip
    times = costs["sums"][False] / costs["sums"][True]
    drawing.text(x, TOP + 152, f"until now: {times:.1f} × without", anchor="start")
    used = (costs["read"], costs["written"], costs["read"] + costs["written"]) if cached else (0, 0, 0)
    drawing.text(x, TOP + 184, "cache", anchor="start", bold=True)
    for k, (word, amount) in enumerate(zip(("read", "written", "holds then"), used, strict=True)):
        drawing.text(x, TOP + 206 + 21 * k, word, anchor="start")
        drawing.text(x + wide, TOP + 206 + 21 * k, gib(amount), anchor="end")
    drawing.text(x, TOP + 280, "logits against recomputing", size=14, anchor="start", bold=True)
    drawing.text(x, TOP + 302, f"largest difference {here.off:.0e}", anchor="start")
    drawing.text(x, TOP + 324, f"next: {pieces[here.stop] if here.stop >= trace.prompt else 'the prompt goes on'}",
                 anchor="start", colour=COLOURS["green"], bold=True)  # fmt: skip
    if here.stop >= trace.prompt:
        drawing.text(x + wide, TOP + 324, f"{here.probability:.0%}", anchor="end", colour=COLOURS["green"])


def legend(drawing: Drawing, cached: bool) -> None:
    """What the colours mean in this mode."""
    x, y = LEFT, TOP + SIDE + 28
    for state, words in LEGEND[cached].items():
        drawing.rect(x, y - 7, 14, 14, fill=FILLS[state])
        drawing.text(x + 20, y, words, anchor="start")
        x += 44 + 7.9 * len(words)


def summary_of(trace: Trace, pieces, step: int, cached: bool, costs: dict) -> str:
    """The pass in one line."""
    here = trace.passes[step]
    kind = "prefill" if here.start < trace.prompt else "decode"
    n = here.stop - here.start
    way = (
        f"{n} computed, {here.start} from the cache" if cached else f"{here.stop} computed, {here.start} of them again"
    )
    return (
        f"Pass {step} of {len(trace.passes) - 1}, {kind}: {way}; {in_units(costs[cached], 1000, FLOPS)} "
        f"({'without' if cached else 'with'} the cache {in_units(costs[not cached], 1000, FLOPS)}). "
        f"Largest logit difference {here.off:.0e}; next token {pieces[here.stop]}."
    )
