"""Pictures of counting: every number of a small model, shares of parts, totals against a printed one, costs by length.

The three `…_parts` functions sort what `accounting` counts by the part of the model that a reader knows it by.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from transformer_lib.accounting import Row, count_parameters, flops_per_token, training_memory
from transformer_lib.config import TransformerConfig
from transformer_lib.plots.style import COLOURS, CYCLE, new_figure

PART_COLOURS = {
    "embedding": COLOURS["sky"],
    "positions": COLOURS["purple"],
    "attention": COLOURS["orange"],
    "MLP": COLOURS["green"],
    "norms": COLOURS["black"],
    "unembedding": COLOURS["blue"],
    "scores and averages": COLOURS["red"],
}
MEMORY_COLOURS = {
    "weights": COLOURS["blue"],
    "gradients": COLOURS["sky"],
    "Adam's moments": COLOURS["yellow"],
    "activations": COLOURS["red"],
}


def part_of(row: Row) -> str:
    """The part of the model that a stored tensor belongs to: a key of PART_COLOURS."""
    if "norm" in f"{row.part}.{row.tensor}":
        return "norms"
    if row.part == "position_embedding":
        return "positions"
    if "block" in row.part:
        return "MLP" if row.tensor.startswith("mlp") else "attention"
    return row.part


def parameter_parts(cfg: TransformerConfig) -> dict[str, int]:
    """{part: stored numbers}, in the order in which data meets the parts; biases belong to their part."""
    parts = dict.fromkeys(list(PART_COLOURS)[:6], 0)
    for row in count_parameters(cfg).rows:
        parts[part_of(row)] += row.count
    return parts


def flop_parts(cfg: TransformerConfig, context: int) -> dict[str, int]:
    """{part: FLOPs} of the forward pass of one token that sees `context` tokens."""
    parts = dict.fromkeys(("attention", "MLP", "unembedding", "scores and averages"), 0)
    for row in count_parameters(cfg).rows:
        if len(row.shape) == 2 and part_of(row) in ("attention", "MLP"):
            parts[part_of(row)] += 2 * row.count
    parts["unembedding"] = 2 * cfg.vocab_size * cfg.d_model  # tied or not
    parts["scores and averages"] = flops_per_token(cfg, context).attention
    return parts


def memory_parts(cfg: TransformerConfig, tokens: int, batch_size: int = 1) -> dict[str, int]:
    """{part: bytes} of training in float32 with Adam."""
    memory = training_memory(cfg, tokens, batch_size)
    return dict(
        zip(MEMORY_COLOURS, (memory.weights, memory.gradients, memory.moments, memory.activations), strict=True)
    )


def ink(colour: str) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 125 else "#111111"


def shares(rows: dict[str, dict], totals: dict[str, str], colours: dict[str, str], xlabel: str) -> Figure:
    """One bar per row, all of the same length, cut into its parts; the total in words at its end."""
    fig = new_figure(8.0, 1.3 + 0.42 * len(rows))
    ax = fig.subplots()
    for y, (name, parts) in enumerate(rows.items()):
        start, whole = 0.0, sum(parts.values())
        for part, size in parts.items():
            share = 100 * size / whole
            ax.barh(y, share, left=start, height=0.72, color=colours[part], ec="white", lw=0.8)
            if share > 6:
                ax.text(start + share / 2, y, f"{share:.0f}%", ha="center", va="center", color=ink(colours[part]))
            start += share
        ax.text(101, y, totals[name], va="center")
    ax.set(yticks=range(len(rows)), yticklabels=list(rows), xlim=(0, 100), xlabel=xlabel)
    ax.invert_yaxis()
    used = [part for part in colours if any(parts.get(part) for parts in rows.values())]
    handles = [Rectangle((0, 0), 1, 1, fc=colours[part]) for part in used]
    fig.legend(handles, used, loc="outside lower center", ncols=len(used), handlelength=1, columnspacing=1.2)
    return fig


def to_scale(cfg: TransformerConfig) -> Figure:
    """Every number of a small model as one square, every tensor in its shape: one row per block."""
    fig = new_figure(8.0, 3.9)
    ax = fig.subplots()
    stacks: dict[str, list[Row]] = {}
    for row in count_parameters(cfg).rows:
        stacks.setdefault(row.part, []).append(row)
    x, high = 0.0, cfg.ff_width + 7
    for part, rows in stacks.items():
        top = high * int(part.split(".")[1]) if "block" in part else 0.5 * high * (cfg.n_layers - 1)
        if "block" in part:
            x = cfg.d_model + 6.0
        for row in rows:
            name = row.tensor.split(".")[-2].split("_norm")[0] if "." in row.tensor else part.replace("_", " ")
            x += grid_of_squares(ax, x, top, row, "norm" if name in ("attention", "mlp") else name) + 3
        if "block" in part:
            ax.text(cfg.d_model + 6.0, top - 4.6, f"block {part.split('.')[1]}", weight="bold", va="bottom")
            x += 3.5
    ax.set(xlim=(-1, x), ylim=(high * cfg.n_layers - 4, -8), aspect="equal")
    ax.set_axis_off()
    return fig


def grid_of_squares(ax: Axes, x: float, y: float, row: Row, name: str) -> int:
    """Draw one tensor with its upper left corner at (x, y); returns its width."""
    tall, wide = row.shape if len(row.shape) == 2 else (row.shape[0], 1)
    ax.add_patch(Rectangle((x, y), wide, tall, fc=PART_COLOURS[part_of(row)], lw=0))
    lines = [[(x + i, y), (x + i, y + tall)] for i in range(wide + 1)]
    lines += [[(x, y + i), (x + wide, y + i)] for i in range(tall + 1)]
    ax.add_collection(LineCollection(lines, colors="white", linewidths=0.5))
    below = name == "final norm"  # too wide a name for its place above
    place, side = ((x + 2, y + tall + 0.6), "right") if below else ((x + wide / 2, y - 0.6), "center")
    ax.text(*place, name, ha=side, va="top" if below else "bottom")
    return wide


def gap(variants: dict[str, int], printed: float) -> Figure:
    """Totals of a few readings of a paper, against the band of totals that would be printed as `printed` million."""
    fig = new_figure(8.0, 1.3 + 0.36 * len(variants))
    ax = fig.subplots()
    ax.axvspan(printed - 0.5, printed + 0.5, color="#FFE9B0", lw=0)
    ax.text(printed, -0.85, f"prints as {printed:.0f} million", ha="center", va="center")
    for y, total in enumerate(variants.values()):
        inside = abs(total / 1e6 - printed) < 0.5
        ax.plot(total / 1e6, y, "o", ms=10, color=COLOURS["green"] if inside else COLOURS["blue"])
        side = 1 if total / 1e6 < printed + 12 else -1
        label = ax.text(total / 1e6 + side * 0.5, y, f"{total:,}", va="center", ha="left" if side > 0 else "right")
        label.set_bbox({"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8})
    ax.set(yticks=range(len(variants)), yticklabels=list(variants), ylim=(len(variants) - 0.4, -1.3),
           xlim=(62, 83), xticks=range(62, 84, 3), xlabel="parameters (million)")  # fmt: skip
    ax.grid(True, axis="x")
    return fig


def crossing(cfg: TransformerConfig, others: dict[str, TransformerConfig], longest: int) -> Figure:
    """FLOPs of one token against its position: absolute for one model, as a share of the weights' for several."""
    fig = new_figure(8.0, 3.9)
    left, right = fig.subplots(1, 2)
    (place, weights), colour = meeting(cfg), PART_COLOURS["MLP"]
    left.fill_between([0, longest], weights, color=colour, alpha=0.2, lw=0)
    left.axhline(weights, color=colour)
    left.text(longest * 0.125, weights * 1.2, "products with weights", color=colour)
    left.plot([0, longest], [0, weights * longest / place], color=COLOURS["red"])
    left.text(longest * 0.43, weights * 0.25, "scores and averages", color=COLOURS["red"])
    left.plot(place, weights, "o", color=COLOURS["black"], ms=8, zorder=3)
    left.annotate(f"{place:,.0f}", (place, weights), (10, -16), textcoords="offset points", weight="bold")
    left.axvline(cfg.max_seq_len, color=COLOURS["grey"], lw=1.2, ls=":")
    left.text(longest * 0.125, weights * 1.6, f"longest sequence: {cfg.max_seq_len:,}", color=COLOURS["grey"])
    left.set(xlim=(0, longest), ylim=(0, weights * 1.75), xlabel="position of the token",
             ylabel="GFLOPs of this token", xticks=range(0, longest + 1, 10_000))  # fmt: skip
    left.xaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")
    for (name, other), line in zip(others.items(), CYCLE, strict=False):
        ends, unit = np.array([16, 131_072]), 100 / meeting(other)[0]  # a straight line needs two points
        right.loglog(ends, ends * unit, color=line, label=name)
        right.plot(other.max_seq_len, other.max_seq_len * unit, "s", color=line, ms=8)
    right.axhline(100, color=COLOURS["black"], lw=1, ls=(0, (4, 4)))
    right.set(xlabel="position of the token", ylabel="% of the weights' FLOPs", ylim=(0.2, 3000),
              xlim=(16, 131_072), title="■ each model's longest sequence")  # fmt: skip
    right.yaxis.set_major_formatter(lambda share, _: f"{share:g}%")
    fig.legend(loc="outside lower center", ncols=len(others))
    return fig


def meeting(cfg: TransformerConfig) -> tuple[float, float]:
    """(position, GFLOPs) at which a token's own attention costs as much as its products with weights."""
    one = flops_per_token(cfg, 1)
    return one.weights / one.attention, one.weights / 1e9


def growth(lengths, weights, attention) -> Figure:
    """FLOPs of whole sequences: one curve grows with T, the other with T². lengths: equally spaced, from the first."""
    fig = new_figure(8.0, 3.4)
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.15))
    lengths, weights, attention = (np.asarray(values, float) for values in (lengths, weights, attention))
    names, colours = ("products with weights", "scores and averages"), (PART_COLOURS["MLP"], COLOURS["red"])
    left.stackplot(lengths, weights / 1e12, attention / 1e12, colors=colours, alpha=0.75, lw=0)
    left.set(xlim=(0, lengths[-1]), ylim=(0, None), title="added up", xticks=np.linspace(0, lengths[-1], 5))
    left.yaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")
    doublings = [2**k - 1 for k in range(int(np.log2(len(lengths))) + 1)]
    for values, name, colour in zip((weights, attention), names, colours, strict=True):
        right.loglog(lengths, values / 1e12, color=colour, marker="o", ms=6, markevery=doublings, label=name)
    right.set_xscale("log", base=2)
    right.set_title("both axes logarithmic: dots at doublings")
    right.legend(loc="upper left", borderaxespad=0)
    for ax in (left, right):
        ax.set(xlabel="tokens in the sequence, T", ylabel="TFLOPs, forward")
        ax.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:.0f} Ki" if n else "0")
    return fig


def squarify(sizes, x: float, y: float, width: float, height: float) -> list[tuple[float, float, float, float]]:
    """Rectangles (x, y, width, height) with areas in proportion to `sizes`, as square as can be (Bruls et al., 2000).

    They fill the given rectangle. Sizes are above 0; the result is in their order.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    unit = width * height / sum(sizes)
    areas, found = [sizes[i] * unit for i in order], []
    while areas:
        short = min(width, height)
        n = 1
        while n < len(areas) and worst(areas[: n + 1], short) <= worst(areas[:n], short):
            n += 1
        thick, at = sum(areas[:n]) / short, 0.0
        for area in areas[:n]:
            long = area / thick
            found.append((x, y + at, thick, long) if width >= height else (x + at, y, long, thick))
            at += long
        x, y = (x + thick, y) if width >= height else (x, y + thick)
        width, height = (width - thick, height) if width >= height else (width, height - thick)
        areas = areas[n:]
    return [rectangle for _, rectangle in sorted(zip(order, found, strict=True))]


def worst(areas, side: float) -> float:
    """The largest ratio of sides among rectangles of these areas laid in one row along `side`."""
    thick = sum(areas) / side
    return max(max(area / thick**2, thick**2 / area) for area in areas)
