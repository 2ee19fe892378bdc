"""Pictures of notebook 01: rows of a table, their gradients, shuffled rows, sinusoids, and scores of two positions."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch

from transformer_lib.plots.style import COLOURS, DIVERGING, new_figure
from transformer_lib.plots.tokens import heat, readable


def vocabulary_sizes(sizes, letters, cuts: dict) -> Figure:
    """Left: letters per token against the vocabulary's size. Right: one sentence cut by a few of the vocabularies."""
    fig = new_figure(8.0, 2.9)
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.5))
    left.plot(sizes, letters, "o-", color=COLOURS["blue"])
    left.set(xlabel="entries of the vocabulary", ylabel="letters per token", ylim=(0, max(letters) * 1.15))
    left.grid(True, axis="y")
    longest = max(len("".join(pieces)) for pieces in cuts.values())
    for row, (size, pieces) in enumerate(cuts.items()):
        right.text(0, row - 0.42, f"{size:,} entries: {len(pieces)} tokens", va="center", weight="bold")
        at = 0
        for k, piece in enumerate(pieces):
            right.barh(row, len(piece) - 0.12, left=at, height=0.42, color=("#CFE3F2", "#FBE3B3")[k % 2])
            for letter, sign in enumerate(piece):
                right.text(at + letter + 0.44, row, readable(sign), ha="center", va="center", parse_math=False)
            at += len(piece)
    right.set(xlim=(0, longest), ylim=(len(cuts) - 0.6, -0.7))
    right.set_axis_off()
    return fig


def look_up(table, ids, pieces) -> Figure:
    """The whole table with the chosen rows marked, and the matrix X that they make. table: (V, d)."""
    table = np.asarray(table)
    limit = 2.5 * float(table.std())
    fig = new_figure(8.0, 4.2)
    fig.get_layout_engine().set(wspace=0.19)  # room for the lines
    left, right = fig.subplots(1, 2, width_ratios=(1, 2.1))
    left.imshow(table, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    left.set(title=f"the table {table.shape}", xlabel="component", ylabel="token id = number of the row", xticks=[])
    heat(right, table[ids], title=f"X {table[ids].shape}: one row per token", limits=(-limit, limit),
         diverging=True, numbers=False, xlabel="component", colorbar="value")  # fmt: skip
    names = [f"{readable(piece)}  {i}" for i, piece in zip(ids, pieces, strict=True)]
    right.set_yticks(range(len(ids)), names, parse_math=False)
    edge = table.shape[1] - 0.5
    for row, i in enumerate(ids):
        colour = COLOURS["black"]
        left.plot([-0.5, edge], [i, i], color=colour, lw=1.2)
        ends = {"xyA": (edge, i), "xyB": (-0.365, 1 - (row + 0.5) / len(ids))}
        line = ConnectionPatch(**ends, coordsA=left.transData, coordsB=right.transAxes, color=colour, lw=0.9, alpha=0.7)
        fig.add_artist(line)
    left.set_xlim(-0.5, edge)
    return fig


def row_gradients(separate, shared, read) -> Figure:
    """The length of each row's gradient, for a table that is only looked up, and for one that also makes the logits.

    separate, shared: (V,) lengths; read: the ids that the model read.
    """
    fig = new_figure(8.0, 3.6)
    axes = fig.subplots(2, 1, sharex=True)
    separate, shared, read = np.asarray(separate), np.asarray(shared), np.asarray(read)
    floor, top = shared[shared > 0].min() / 3, max(separate.max(), shared.max())
    words = ("a table that is only looked up", "one table for look-up and logits, as in the toy")
    for ax, lengths, title in zip(axes, (separate, shared), words, strict=True):
        ax.vlines(np.flatnonzero(lengths), floor, lengths[lengths > 0], color="#7FA3BE", lw=0.9)
        ax.vlines(read, floor, lengths[read], color=COLOURS["red"], lw=2.4)
        ax.set(title=f"{title}: {int((lengths > 0).sum()):,} of {len(lengths):,} rows move", ylabel="gradient")
        ax.set(xlim=(-6, len(lengths) + 5), yscale="log", ylim=(floor, 3 * top))
        ax.minorticks_off()
    axes[1].set_xlabel("token id = number of the row (red: the tokens that were read)")
    return fig


def shuffled(x, outputs, order, tokens) -> Figure:
    """Rows and outputs before and after a shuffle. x, outputs: (T, d); order: the new order of the rows."""
    x, outputs = np.asarray(x), np.asarray(outputs)
    fig = new_figure(8.0, 3.0)
    axes = fig.subplots(1, 4)
    moved = [tokens[i] for i in order]
    limit = float(max(np.abs(x).max(), np.abs(outputs).max()))
    parts = ((x, tokens, "X"), (outputs, tokens, "attention(X)"), (x[order], moved, "X shuffled"),
             (outputs[order], moved, "attention of that"))  # fmt: skip
    for ax, (matrix, names, title) in zip(axes, parts, strict=True):
        heat(ax, matrix, names, title=title, limits=(-limit, limit), diverging=True, numbers=False, xlabel="component")
        ax.set_xticks(range(x.shape[1]))
    return fig


def dial(ax: Axes, title: str = "") -> None:
    """An empty clock face of radius 1; angle 0 points right and angles grow anticlockwise."""
    ax.add_patch(Circle((0, 0), 1, fill=False, ec="#BBBBBB", lw=1.2))
    hours = np.exp(1j * np.arange(12) * np.pi / 6)
    marks = np.outer(hours, (0.92, 1, np.nan)).ravel()  # one broken line: explorers draw it again at every step
    ax.plot(marks.real, marks.imag, color="#BBBBBB", lw=1)
    ax.set(xlim=(-1.18, 1.18), ylim=(-1.18, 1.18), aspect="equal", title=title)
    ax.set_axis_off()


def sinusoid_rotation(table, position: int, steps: int, pairs, angles) -> Figure:
    """The sinusoids as a map, and some of their pairs as hands: from `position` to `position + steps` they turn.

    table: (T, d); pairs: which pairs (2i, 2i + 1); angles: by how much each pair turns, in radians.
    """
    table = np.asarray(table)
    fig = new_figure(8.0, 4.6)
    grid = fig.add_gridspec(2, len(pairs), height_ratios=(1.25, 1))
    ax = fig.add_subplot(grid[0, :])
    heat(ax, table.T, limits=(-1, 1), diverging=True, numbers=False, colorbar="value", xlabel="position",
         ylabel="component")  # fmt: skip
    for at, colour in ((position, COLOURS["blue"]), (position + steps, COLOURS["red"])):
        ax.axvline(at, color=colour, lw=2.2)
    for column, (pair, angle) in enumerate(zip(pairs, angles, strict=True)):
        face = fig.add_subplot(grid[1, column])
        dial(face, f"pair {pair}")
        for at, colour, width in ((position, COLOURS["blue"], 5), (position + steps, COLOURS["red"], 2.4)):
            sine, cosine = table[at, 2 * pair : 2 * pair + 2]
            face.plot([0, cosine], [0, sine], color=colour, lw=width, solid_capstyle="round")
        face.text(0, -1.32, f"turns {np.degrees(angle):.3g}°", ha="center", va="center")
        face.set_ylim(-1.45, 1.15)
    return fig


def two_positions(panels: dict) -> Figure:
    """Scores of one query at position m with one key at position n, per way to put position in.

    panels: {title: (T, T) matrix}, row m, column n.
    """
    fig = new_figure(8.0, 3.2)
    axes = fig.subplots(1, len(panels))
    for ax, (title, matrix) in zip(axes, panels.items(), strict=True):
        heat(ax, matrix, title=title, diverging=True, numbers=False, xlabel="position n of the key")
        ax.set(xticks=range(0, len(matrix), 10), yticks=range(0, len(matrix), 10))
    axes[0].set_ylabel("position m of the query")
    return fig
