"""Notebook 11: what one sequence keeps while it is decoded: caches that grow with its length, a state that does not."""

import ipywidgets as widgets
import torch

from transformer_lib.accounting import gib
from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer
from transformer_lib.explorers.charts import Chart
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.kv_cache import KVCache
from transformer_lib.plots.style import COLOURS
from transformer_lib.relatives.mla import LatentCache, MLAConfig
from transformer_lib.relatives.ssm import SSMConfig, StateCache

LONGEST = 2**20
CONTEXTS = [2**n for n in range(21)]
KINDS = dict(zip(("multi-head", "grouped", "latent", "state"), ("blue", "green", "purple", "red"), strict=True))


def caches(cfg: TransformerConfig, kv_heads: int, d_state: int) -> dict[str, tuple[type[KVCache], TransformerConfig]]:
    """The four ways to remember in a model of this shape: {name: (cache class, config)}."""
    shape = cfg.replace(max_seq_len=LONGEST, n_kv_heads=None)
    sizes = {name: getattr(shape, name) for name in ("vocab_size", "d_model", "n_layers", "max_seq_len")}
    latent = MLAConfig(**vars(shape), d_latent=4 * cfg.d_k, d_rope=cfg.d_k // 2)  # DeepSeek-V2's proportions
    return {
        "multi-head": (KVCache, shape),
        "grouped": (KVCache, shape.replace(n_kv_heads=kv_heads)),
        "latent": (LatentCache, latent),
        "state": (StateCache, SSMConfig(**sizes, d_state=d_state)),
    }


def measured(kind: type[KVCache], cfg: TransformerConfig, tokens: int, bytes_per_number: int = 2) -> int:
    """Bytes of a real cache object for one sequence, made on the meta device, which needs no memory."""
    dtype = {2: torch.float16, 4: torch.float32}[bytes_per_number]
    return kind(cfg, batch_size=1, max_len=tokens, dtype=dtype, device="meta").nbytes


def state_or_cache(model: str = "llama2-7b") -> HtmlExplorer:
    """Context length, key/value heads, state size → memory of one sequence, for attention and for a recurrence."""
    cfg = PRESETS[model]

    def draw(context, kv_heads, d_state):
        kinds = caches(cfg, kv_heads, d_state)
        now = {name: measured(*kind, context) for name, kind in kinds.items()}
        drawing = Drawing(800, 392)
        chart = Chart(drawing, 100, 40, 430, 290, (1, LONGEST), (2**14, 2**40), log=True)
        chart.frame(
            {2**n: f"{2**n:,}" if n < 20 else "1,048,576" for n in (0, 5, 10, 15, 20)},
            {2**n: gib(2**n) for n in (15, 20, 25, 30, 35, 40)},
            "tokens of context", "memory of one sequence, 16-bit numbers",
        )  # fmt: skip
        x, low = chart.place(context, 2**14)
        drawing.line(x, 40, x, low, "#8A8A8A", 1.5)
        for name, (kind, shape) in kinds.items():
            colour = COLOURS[KINDS[name]]
            ends = [(tokens, measured(kind, shape, tokens)) for tokens in (1, LONGEST)]
            chart.curve(ends, colour, 3, hover=name)  # straight on logarithmic axes: proportional, or constant
            chart.dot(context, now[name], colour, hover=f"{name}: {now[name]:,} bytes")
        drawing.text(566, 24, f"after {context:,} tokens", anchor="start", bold=True)
        notes = {"multi-head": f"{cfg.n_heads} heads", "grouped": f"{kv_heads} key/value heads",
                 "latent": f"{4 * cfg.d_k} + {cfg.d_k // 2} per layer", "state": f"{d_state} per channel"}  # fmt: skip
        for row, (name, size) in enumerate(now.items()):
            y = 64 + 70 * row
            drawing.rect(566, y - 9, 18, 18, COLOURS[KINDS[name]], radius=9)
            drawing.text(594, y, f"{name}: {gib(size)}", anchor="start", bold=True)
            drawing.text(594, y + 22, notes[name], anchor="start", colour="#444444")
        even = next((n for n in CONTEXTS if measured(*kinds["multi-head"], n) > now["state"]), LONGEST)
        return drawing, (
            f"After {context:,} tokens: " + ", ".join(f"{name} {gib(size)}" for name, size in now.items())
            + f". The state is the smaller memory than the multi-head cache from about {even:,} tokens on."
        )  # fmt: skip

    shares = [n for n in range(1, cfg.n_heads) if cfg.n_heads % n == 0]
    controls = {
        "context": widgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in CONTEXTS], value=4096, description="tokens of context"
        ),
        "kv_heads": widgets.SelectionSlider(options=shares, value=8, description="key/value heads, grouped"),
        "d_state": widgets.SelectionSlider(options=[8, 16, 32, 64, 128], value=16, description="state per channel"),
    }
    return HtmlExplorer(draw, controls, title="A cache grows, a state does not", name="state_or_cache")
