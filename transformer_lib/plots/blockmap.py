"""The small map of the whole Transformer at the top of every notebook, with the notebook's own part lit."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from transformer_lib.plots.style import COLOURS, font_scale, new_figure

WIDTH, HEIGHT = 100.0, 27.5  # map units; 8 in × 2.2 in
STREAM = 5.5  # height of the residual stream
LIT, UNLIT = ("#FFE08A", COLOURS["red"], "#111111"), ("#F4F4F4", "#9A9A9A", "#555555")

# part: (x, y, width, height, words). The stream runs left to right at the bottom; sublayers stand above it.
BOXES = {
    "tokens": (0.6, 2.2, 8.0, 6.6, "tokens"),
    "embedding": (10.3, 2.2, 12.8, 6.6, "embedding"),
    "positions": (10.3, 12.6, 12.8, 5.2, "positions"),
    "norm": (27.0, 10.6, 7.0, 5.2, "norm"),
    "scores": (36.8, 17.2, 9.0, 5.2, "Q Kᵀ"),
    "scaling": (46.6, 17.2, 6.6, 5.2, "÷√dₖ"),
    "mask": (54.0, 17.2, 7.2, 5.2, "mask"),
    "heads": (36.8, 10.6, 12.6, 5.2, "heads × H"),
    "cache": (50.2, 10.6, 11.0, 5.2, "KV cache"),
    "second norm": (66.2, 10.6, 7.0, 5.2, "norm"),
    "mlp": (66.2, 17.2, 7.0, 5.2, "MLP"),
    "final norm": (80.2, 2.2, 6.6, 6.6, "norm"),
    "unembedding": (88.4, 2.2, 11.0, 6.6, "logits"),
}
GROUPS = {
    "attention": ("scores", "scaling", "mask", "heads"),
    "norm": ("norm", "second norm", "final norm"),
    "block": ("norm", "scores", "scaling", "mask", "heads", "second norm", "mlp", "residual"),
    "model": (*BOXES, "residual"),
}
PARTS = (*BOXES, "residual", *(name for name in GROUPS if name not in BOXES))


def _box(ax, x, y, width, height, words, lit, size):
    face, edge, ink = LIT if lit else UNLIT
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=1.1", fc=face, ec=edge, lw=2.0 if lit else 1.0
    )
    ax.add_patch(shape)
    weight = "bold" if lit else "normal"
    ax.text(x + width / 2, y + height / 2 - 0.1, words, ha="center", va="center", color=ink, size=size, weight=weight)


def _arrow(ax, path, lit=False, width=1.3):
    colour = COLOURS["red"] if lit else "#8A8A8A"
    *first, (x0, y0), (x1, y1) = path
    ax.plot([x for x, _ in [*first, (x0, y0)]], [y for _, y in [*first, (x0, y0)]], color=colour, lw=width, zorder=1)
    style = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11}
    ax.annotate("", (x1, y1), (x0, y0), arrowprops=style, zorder=1)


def _plus(ax, x, lit):
    face, edge, ink = LIT if lit else UNLIT
    ax.plot([x], [STREAM], "o", ms=15, mfc=face, mec=edge, mew=1.5, zorder=3)
    ax.text(x, STREAM - 0.1, "+", ha="center", va="center", size=13, weight="bold", color=ink, zorder=4)


def _stream(ax, lit):
    """Tokens to logits along the bottom: the residual stream, and what is read from it and added to it."""
    _arrow(ax, [(8.6, STREAM), (10.3, STREAM)])
    _arrow(ax, [(16.7, 12.6), (16.7, 8.8)])
    _arrow(ax, [(23.1, STREAM), (80.2, STREAM)], lit, 3.2 if lit else 2.2)
    _arrow(ax, [(86.8, STREAM), (88.4, STREAM)])
    _arrow(ax, [(30.5, STREAM), (30.5, 10.6)], lit)
    _arrow(ax, [(30.5, 15.8), (30.5, 19.8), (36.0, 19.8)])
    _arrow(ax, [(61.9, 16.5), (63.3, 16.5), (63.3, STREAM + 1.6)], lit)
    _arrow(ax, [(69.7, STREAM), (69.7, 10.6)], lit)
    _arrow(ax, [(69.7, 15.8), (69.7, 17.2)])
    _arrow(ax, [(73.2, 19.8), (75.6, 19.8), (75.6, STREAM + 1.6)], lit)
    for x in (63.3, 75.6):
        _plus(ax, x, lit)


def block_map(*lit: str) -> Figure:
    """The map of the whole model, 8 in × 2.2 in, with the named parts lit.

    Parts: tokens, embedding, positions, norm, attention (or one of its own: scores, scaling, mask, heads), cache,
    residual, second norm, mlp, final norm, unembedding; block and model light all that belongs to them.
    """
    for name in lit:
        if name not in PARTS:
            raise ValueError(f"the map has no part {name!r}; its parts are: {', '.join(PARTS)}")
    on = {part for name in lit for part in GROUPS.get(name, (name,))}
    fig = new_figure(8.0, 2.2)
    fig.set_layout_engine("none")
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    ax.set_axis_off()
    small = 10.4 * min(font_scale(), 1.08)  # the boxes do not grow with a projector's fonts
    frame = {"boxstyle": "round,pad=0,rounding_size=1.6", "fc": "none", "ec": "#9A9A9A", "lw": 1.2, "ls": (0, (4, 3))}
    ax.add_patch(FancyBboxPatch((25.2, 1.0), 53.2, 25.4, **frame))
    ax.text(77.4, 24.2, "block × L", ha="right", va="center", size=small, color="#555555", style="italic")
    inner = {**frame, "fc": "#FFFFFF", "ls": "-"}
    if on.issuperset(GROUPS["attention"]):
        inner["ec"] = COLOURS["red"]
    ax.add_patch(FancyBboxPatch((36.0, 9.8), 25.9, 15.6, **inner))
    ax.text(36.9, 23.9, "attention", va="center", size=small, color="#333333", weight="bold")
    ax.text(61.0, 23.9, "softmax · V", ha="right", va="center", size=small, color="#555555")
    _stream(ax, "residual" in on)
    ax.text(51.0, 2.9, "residual stream", ha="center", va="center", size=small, color=_ink("residual" in on))
    for part, (x, y, width, height, words) in BOXES.items():
        _box(ax, x, y, width, height, words, part in on, small)
    return fig


def _ink(lit: bool):
    return COLOURS["red"] if lit else "#555555"
