"""The memory calculator of notebook 10: weights and caches of a batch, what a decode step reads, what fits."""

import ipywidgets as widgets

from transformer_lib.accounting import count_parameters, flops_per_token, gib, kv_cache_bytes, weight_bytes
from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.kv_cache import CACHE, WEIGHTS
from transformer_lib.plots.style import COLOURS

MODELS = {name: cfg for name, cfg in PRESETS.items() if not cfg.n_encoder_layers}
DTYPES = {"32 bits": 4, "16 bits": 2, "8 bits": 1}
BATCHES = (1, 2, 4, 6, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1, 128, 256, 1_024, 2_048, 4_096, 8_192)
MEMORIES = (8, 16, 24, 40, 80, 141)
LEFT, WIDE = 150, 440  # pixels: a bar begins there, and the longest is so long


def sharings(cfg: TransformerConfig) -> list[tuple[str, int]]:
    """The numbers of key/value heads that the query heads can share, in words."""
    names = {cfg.n_heads: "multi-head", 1: "multi-query"}
    return [(f"{n} ({names.get(n, 'grouped')})", n) for n in range(1, cfg.n_heads + 1) if cfg.n_heads % n == 0]


class MemoryCalculator(HtmlExplorer):
    """Another model brings its own numbers of key/value heads and its own longest context."""

    def __init__(self, model: str):
        self.busy, cfg = False, MODELS[model]
        controls = {
            "model": widgets.ToggleButtons(options=list(MODELS), value=model, description="model"),
            "batch": widgets.SelectionSlider(options=BATCHES, value=6, description="sequences"),
            "context": widgets.SelectionSlider(options=contexts(cfg), value=cfg.max_seq_len, description="tokens each"),
            "kv_heads": widgets.SelectionSlider(options=sharings(cfg), value=cfg.kv_heads, description="K/V heads"),
            "dtype": widgets.ToggleButtons(options=list(DTYPES), value="16 bits", description="each number in"),
            "memory": widgets.SelectionSlider(
                options=[(f"{n} GiB", n) for n in MEMORIES], value=24, description="memory of the machine"
            ),
            "bandwidth": widgets.FloatLogSlider(
                1000.0, base=10, min=1, max=4, step=0.1, readout_format=",.0f", description="it reads GB per second"
            ),
        }  # fmt: skip
        super().__init__(calculate, controls, title="What fits, and how fast can it decode?", name="memory_calculator")

    def _follow(self, change=None) -> None:
        """Draw once, when all controls that depend on the model have moved."""
        if self.busy:
            return
        self.busy = True
        try:
            if change and change["owner"] is self.controls["model"]:
                cfg = MODELS[change["new"]]
                refill(self.controls["kv_heads"], sharings(cfg), cfg.kv_heads)
                refill(self.controls["context"], contexts(cfg), cfg.max_seq_len)
            super()._follow(change)
        finally:
            self.busy = False


def contexts(cfg: TransformerConfig) -> list[tuple[str, int]]:
    """Up to the longest sequence of the model, which is one of them."""
    fitting = sorted({n for n in CONTEXTS if n < cfg.max_seq_len} | {cfg.max_seq_len})
    return [(f"{n:,}", n) for n in fitting]


def refill(slider, options, value) -> None:
    """Other options for a slider, which must not show one that is gone in between."""
    slider.options = options
    slider.value = value


def memory_calculator(model: str = "llama2-7b") -> MemoryCalculator:
    """Model, batch, context, key/value heads and dtype → memory, bytes read per step, speed limit."""
    return MemoryCalculator(model)


def calculate(model, batch, context, kv_heads, dtype, memory, bandwidth) -> tuple[Drawing, str]:
    """The picture and its summary."""
    cfg, size = MODELS[model].replace(n_kv_heads=kv_heads), DTYPES[dtype]
    weights, one = weight_bytes(cfg, size), kv_cache_bytes(cfg, context, 1, size)
    caches, room = batch * one, memory * 2**30
    read = {"weights": count_parameters(cfg).multiplying * size, "caches": caches}
    seconds = sum(read.values()) / (bandwidth * 1e9)
    intensity = batch * flops_per_token(cfg, context).total / sum(read.values())
    fitting = max(0, (room - weights) // one)
    drawing = Drawing(800, 372)
    held(drawing, weights, one, batch, room, memory)
    step(drawing, read, batch, seconds, intensity)
    shared(drawing, cfg, size)
    fits = "fits" if weights + caches <= room else "does not fit"
    return drawing, (
        f"{model}, {batch} × {context:,} tokens, {kv_heads} key/value heads, {dtype}: weights {gib(weights)}, caches "
        f"{gib(caches)}, {fits} in {memory} GiB; at most {fitting:,} such sequences would. A decode step reads "
        f"{gib(sum(read.values()))} for {batch} token{'s' * (batch > 1)}: {intensity:.2g} FLOPs per byte, at most "
        f"{batch / seconds:,.0f} tokens per second."
    )


def held(drawing: Drawing, weights: int, one: int, batch: int, room: int, memory: int) -> None:
    """A bar of what must be in memory at once, one piece per sequence, and where the memory ends."""
    total = weights + batch * one
    over = total > room
    scale = WIDE / max(total, room)
    drawing.text(6, 14, "In memory", anchor="start", bold=True)
    drawing.text(794, 14, f"{gib(total)} of {memory} GiB{': too much' if over else ''}", anchor="end", bold=True,
                 colour=COLOURS["red"] if over else COLOURS["black"])  # fmt: skip
    drawing.rect(LEFT, 32, room * scale, 34, fill="#EFEFEF", hover=f"{memory} GiB of memory")
    drawing.rect(LEFT, 36, weights * scale, 26, fill=WEIGHTS, hover=f"weights: {gib(weights)}")
    width = one * scale
    apart = width > 3
    pieces = [(k * width, width) for k in range(batch)] if apart else [(0, batch * width)]
    for k, (x, wide) in enumerate(pieces):
        words = (
            f"cache of sequence {k + 1}: {gib(one)}" if apart else f"caches of {batch} sequences: {gib(batch * one)}"
        )
        drawing.rect(
            LEFT + weights * scale + x, 36, wide, 26, fill=CACHE, stroke="#FFFFFF" if apart else "none", hover=words
        )
    end = LEFT + room * scale
    drawing.line(end, 28, end, 70, colour=COLOURS["black"], width=2.5)
    drawing.text(6, 49, "weights, caches", anchor="start")
    drawing.text(LEFT, 86, f"weights {gib(weights)}", anchor="start", colour=WEIGHTS, bold=True)
    drawing.text(
        LEFT + 190, 86, f"caches {batch} × {gib(one)} = {gib(batch * one)}", anchor="start", colour="#9A6A00", bold=True
    )


def step(drawing: Drawing, read: dict, batch: int, seconds: float, intensity: float) -> None:
    """A bar of what one decode step reads, and the speed that follows from it."""
    total, top = sum(read.values()), 112
    drawing.text(6, top + 10, "Read by one decode step of the whole batch", anchor="start", bold=True)
    drawing.text(794, top + 10, gib(total), anchor="end", bold=True)
    x = LEFT
    for (name, size), colour in zip(read.items(), (WEIGHTS, CACHE), strict=True):
        wide = WIDE * size / total
        drawing.rect(x, top + 26, wide, 26, fill=colour, hover=f"{name}: {gib(size)}")
        if wide > 90:
            ink = "#FFFFFF" if colour == WEIGHTS else COLOURS["black"]
            drawing.text(x + wide / 2, top + 39, f"{name} {size / total:.0%}", colour=ink)
        x += wide
    drawing.text(6, top + 39, "share of bytes", anchor="start")
    line = f"{intensity:.2g} FLOPs per byte;  at least {1e3 * seconds:.3g} ms;  at most {batch / seconds:,.0f} tokens/s"
    drawing.text(LEFT, top + 66, line, anchor="start")


def shared(drawing: Drawing, cfg: TransformerConfig, size: int) -> None:
    """The cache of one token for every number of key/value heads; the chosen one stands out."""
    top, options = 210, sharings(cfg)
    most, high = kv_cache_bytes(cfg.replace(n_kv_heads=cfg.n_heads), 1, 1, size), min(24, 130 / len(options))
    drawing.text(6, top + 4, "Cache per token, by key/value heads", anchor="start", bold=True)
    for k, (words, n) in enumerate(options):
        y, chosen = top + 20 + k * high, n == cfg.kv_heads
        amount = kv_cache_bytes(cfg.replace(n_kv_heads=n), 1, 1, size)
        drawing.rect(LEFT, y, WIDE * amount / most, high - 4, fill=CACHE if chosen else "#D5D5D5",
                     hover=f"{n} key/value heads: {amount:,} bytes per token")  # fmt: skip
        drawing.text(6, y + high / 2 - 2, words, anchor="start", bold=chosen)
        drawing.text(LEFT + WIDE * amount / most + 8, y + high / 2 - 2, gib(amount), anchor="start", bold=chosen)
