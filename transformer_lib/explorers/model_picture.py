"""The whole model in one picture, drawn from its config: every box with its shapes, for any config."""

from typing import NamedTuple

import ipywidgets as widgets

from transformer_lib.accounting import count_parameters
from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.style import COLOURS

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
MLPS = {"swiglu": "SwiGLU", "gelu": "MLP with GELU", "relu": "MLP with ReLU"}
POSITIONS = {
    "sinusoidal": " + sinusoids",
    "learned": " + position table",
    "rope": "",  # in the attention
    "alibi": "",
    "none": "",
}
HIGH, GAP = 46, 14  # pixels: a box, and the room above it
FILLS = {"attention": "#D6E8F5", "mlp": "#D5EFE6", "norm": "#F3F3F3", "table": "#FCEBC8", "plain": "#FFFFFF"}


class Box(NamedTuple):
    """One box: two lines of words. beside: a sublayer beside the stream, whose output is added to it."""

    kind: str
    name: str
    detail: str
    numbers: int = 0  # stored numbers, in one block
    beside: bool = False


def entrance(cfg: TransformerConfig, letter: str) -> list[Box]:
    """From ids to the stream. letter: T, or S for a source."""
    rows = cfg.vocab_size + (cfg.max_seq_len if cfg.positions == "learned" else 0)
    return [
        Box("plain", "token ids", f"({letter})"),
        Box(
            "table",
            f"embedding{POSITIONS[cfg.positions]}",
            f"{cfg.vocab_size:,} × {cfg.d_model:,}:  ({letter}) → ({letter}, {cfg.d_model:,})",
            rows * cfg.d_model,
        ),
    ]


def projection_shapes(d: int, q: int, kv: int) -> str:
    """The four projections, as briefly as their shapes allow."""
    if d == q == kv:
        return f"W_Q, W_K, W_V, W_O {d:,} × {d:,}"
    inner = f"W_Q, W_K, W_V {d:,} × {q:,}" if q == kv else f"W_Q {d:,} × {q:,}, W_K, W_V {d:,} × {kv:,}"
    return f"{inner}, W_O {q:,} × {d:,}"


def block_boxes(cfg: TransformerConfig, stack: str, cross: bool) -> list[Box]:
    """The sublayers of one block, each with its norm before it or after its add."""
    counts, boxes = count_parameters(cfg), []
    inside, kv = cfg.n_heads * cfg.d_k, cfg.kv_heads * cfg.d_k
    turned = ", RoPE" if cfg.positions == "rope" else ""
    masked = "causal " if stack == "blocks" and cfg.causal else ""
    shapes = projection_shapes(cfg.d_model, inside, kv)
    matrices = 3 if cfg.activation == "swiglu" else 2
    sublayers = {"attention": ("attention", f"{masked}attention, {cfg.n_heads} heads of {cfg.d_k}{turned}", shapes)}
    if cross:
        sublayers["cross_attention"] = ("attention", f"cross-attention, {cfg.n_heads} heads of {cfg.d_k}", shapes)
    wide = f"{matrices} matrices {cfg.d_model:,} × {cfg.ff_width:,}"
    sublayers["mlp"] = ("mlp", MLPS[cfg.activation], wide)
    for name, (kind, words, detail) in sublayers.items():
        sublayer = Box(kind, words, detail, counts.part(f"{stack}.0.{name}."), beside=True)
        scale = Box("norm", NORMS[cfg.norm], "", counts.part(f"{stack}.0.{name}_norm."))
        boxes += [scale, sublayer] if cfg.norm_position == "pre" else [sublayer, scale]
    return boxes


def exit_boxes(cfg: TransformerConfig) -> list[Box]:
    """From the stream to the next token's distribution."""
    v, d = cfg.vocab_size, cfg.d_model
    tied = "tied to the embedding" if cfg.tie_embeddings else f"its own {d:,} × {v:,}"
    own = 0 if cfg.tie_embeddings else v * d
    boxes = [Box("norm", f"final {NORMS[cfg.norm]}", "", count_parameters(cfg).part("final_norm."))]
    return (boxes if cfg.norm_position == "pre" else []) + [
        Box("table", f"unembedding, {tied}", f"(T, {d:,}) → logits (T, {v:,})", own),
        Box("plain", "softmax", f"(T, {v:,}), rows sum to one"),
    ]


class Column:
    """One stack, drawn from the bottom to the top along its stream."""

    def __init__(self, drawing: Drawing, left: float, width: float, pre_norm: bool, counted: bool):
        self.drawing, self.left, self.width, self.y = drawing, left, width, drawing.height - 6
        self.pre_norm, self.stream, self.counted = pre_norm, left + 26, counted

    def box(self, box: Box, times: int = 1) -> None:
        """The next box; one beside the stream gets a line from the stream and one back to a plus."""
        side = box.beside or (box.kind == "norm" and times and self.pre_norm)
        high = HIGH if box.detail else 28
        left, width = (self.left + 62, self.width - 74) if side else (self.left, self.width)
        top = self.y - high
        total = f" × {times} = {box.numbers * times:,}" if times > 1 else ""
        hover = f"{box.name}: {box.numbers:,} numbers{total}" if box.numbers else f"{box.name}: nothing stored"
        self.drawing.rect(left, top, width, high, FILLS[box.kind], "#8A8A8A", hover, radius=6)
        middle = left + width / 2
        self.drawing.text(middle, top + (15 if box.detail else 14), box.name, bold=True)
        if box.detail:
            self.drawing.text(middle, top + 33, box.detail, colour="#444444")
        if self.counted and box.numbers:
            times = f" × {times}" if times > 1 else ""
            self.drawing.text(self.left + self.width + 20, top + high / 2, f"{box.numbers:,}{times}", anchor="start")
        if side:
            self.lines(box, left, top, high)
        self.y = top - GAP

    def lines(self, box: Box, left: float, top: float, high: float) -> None:
        """What a box beside the stream reads and adds."""
        red = COLOURS["red"]
        reads = box.kind == "norm" or not self.pre_norm
        if reads:
            self.drawing.line(self.stream, top + high - 10, left, top + high - 10, red, 2)
        else:
            self.drawing.line(left + 40, top + high, left + 40, top + high + GAP, red, 2)
        if box.beside:
            self.drawing.line(left, top + 10, self.stream, top + 10, red, 2)
            self.drawing.rect(self.stream - 10, top, 20, 20, "#FFE08A", red, "what was computed is added", radius=10)
            self.drawing.text(self.stream, top + 9.5, "+", bold=True)

    def block(self, boxes: list[Box], times: int) -> None:
        """All boxes of a block in a frame that says how often it is repeated."""
        high = sum((HIGH if box.detail else 28) + GAP for box in boxes) + 26
        self.drawing.rect(self.left - 8, self.y - high + 8, self.width + 16, high, "#FAFAFA", "#B5B5B5", radius=10)
        self.drawing.line(self.stream, self.y + 8, self.stream, self.y - high + 8, COLOURS["red"], 4)
        self.drawing.text(self.left + self.width, self.y - high + 22, f"block × {times}", anchor="end", bold=True)
        self.y -= 4
        for box in boxes:
            self.box(box, times)
        self.y -= 22


def column_height(boxes: list[Box]) -> float:
    return sum((HIGH if box.detail else 28) + GAP for box in boxes)


def model_drawing(cfg: TransformerConfig) -> Drawing:
    """The model of a config, from token ids at the bottom to the next-token distribution at the top."""
    both, pre = cfg.n_encoder_layers > 0, cfg.norm_position == "pre"
    start, inside, end = entrance(cfg, "T"), block_boxes(cfg, "blocks", both), exit_boxes(cfg)
    drawing = Drawing(800, column_height([*start, *inside, *end]) + 58)
    column = Column(drawing, 420 if both else 86, 366 if both else 530, pre, counted=not both)
    drawing.line(column.stream, drawing.height - 20, column.stream, 20, COLOURS["red"], 4)
    if not both:
        drawing.text(
            column.left + column.width + 20, drawing.height - 29, "numbers stored ↑", anchor="start", bold=True
        )
    for box in start:
        column.box(box, 0)
    column.block(inside, cfg.n_layers)
    for box in end:
        column.box(box, 0)
    if both:
        draw_encoder(drawing, cfg, column, column_height([*start, *inside[:2]]))
    return drawing


def draw_encoder(drawing, cfg, decoder: Column, below: float) -> None:
    """The encoder's column, and the line that carries its output to the cross-attention. below: what lies under it."""
    column = Column(drawing, 14, 366, decoder.pre_norm, counted=False)
    start, inside = entrance(cfg, "S"), block_boxes(cfg, "encoder.blocks", cross=False)
    top = column.y - column_height([*start, *inside]) - 48
    drawing.line(column.stream, column.y - 14, column.stream, top, COLOURS["red"], 4)
    for box in start:
        column.box(box, 0)
    column.block(inside, cfg.n_encoder_layers)
    extra = HIGH + GAP if decoder.pre_norm else 0
    y, across = drawing.height - 10 - below + extra - HIGH / 2, decoder.left - 18
    words = f"keys and values come from the encoder's output, (S, {cfg.d_model:,})"
    for x0, y0, x1, y1 in (
        (column.stream, top, across, top),
        (across, top, across, y),
        (across, y, decoder.left + 62, y),
    ):
        drawing.line(x0, y0, x1, y1, COLOURS["blue"], 3, hover=words)
    drawing.text(column.stream + 12, top - 16, f"encoder's output (S, {cfg.d_model:,}), read as", anchor="start")
    drawing.text(column.stream + 12, top + 16, "keys and values", anchor="start")


def model_picture() -> HtmlExplorer:
    """Choose a model and see all of it, with its shapes."""

    def draw(model):
        cfg = PRESETS[model]
        total = count_parameters(cfg).total
        stacks = f"{cfg.n_encoder_layers} + {cfg.n_layers}" if cfg.n_encoder_layers else f"{cfg.n_layers}"
        tied = "tied" if cfg.tie_embeddings else "separate"
        return model_drawing(cfg), (
            f"{model}: {stacks} blocks of width {cfg.d_model:,}, {tied} unembedding, {total:,} parameters."
        )

    names = ["toy", *(name for name in PRESETS if name != "toy")]
    controls = {"model": widgets.ToggleButtons(options=names, value="toy", description="model")}
    return HtmlExplorer(draw, controls, title="A whole Transformer, drawn from its config", name="model_picture")
