"""What is drawn quickly, out of memory, is to the byte what matplotlib draws."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from test_explorer import ALL, bars

from transformer_lib.explorers import Explorer, kv_bugs, mask_bugs, residual, scaling
from transformer_lib.explorers.attention import soft_dictionary, three_tokens
from transformer_lib.explorers.base import alternatives
from transformer_lib.explorers.layers import Layers
from transformer_lib.lessons import bugs
from transformer_lib.plots.cells import cell_image
from transformer_lib.plots.style import new_figure, pixels
from transformer_lib.plots.words import REMEMBERED, WordCanvas

WORDS = ["fjord AVAWA ffi Til,", "0.35", "−1.25\ntwo lines", "שלום x", "", " ", "a b", "$\\sqrt{d_k}$ \\$", "é\u0301"]


def test_remembered_words_look_as_matplotlib_draws_them():
    fig = new_figure(8, 4)
    ax = fig.subplots()
    for i in range(54):
        ax.text(0.1037 * (i % 9), 0.017 * i, WORDS[i % len(WORDS)], rotation=(0, 90, 30)[i % 3], size=9 + i % 5,
                color=("black", "#D55E00")[i % 2], alpha=(None, 0.6)[i % 4 == 0], antialiased=i % 7 > 0,
                weight=("normal", "bold")[i % 5 == 0], clip_on=i % 2)  # fmt: skip
    plain = pixels(fig).copy()
    WordCanvas(fig)
    for _ in range(2):
        assert (pixels(fig) == plain).all()
    assert fig.canvas.renderer.masks.cache_info().hits > 30


def test_only_so_many_words_are_remembered():
    fig = new_figure(1, 1)
    WordCanvas(fig)
    words = fig.text(0, 0, "")
    for i in range(REMEMBERED + 20):
        words.set_text(str(i))
        fig.draw_artist(words)
    assert fig.canvas.renderer.masks.cache_info().currsize == REMEMBERED


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (16, 16), (5, 9), (64, 128), (255, 20), (300, 2)])
def test_cells_look_as_an_image(shape):
    """With empty cells, after a change of numbers, of limits, of the shape and place, and out of sight."""
    matrix = np.random.default_rng(0).normal(size=shape)
    matrix[0, 1:] = np.nan
    seen = []
    for quick in (False, True):
        ax = (fig := new_figure(3, 2)).subplots()
        style = {"cmap": "RdBu_r"}
        image = (
            cell_image(ax, matrix, limits=(-1, 1), **style)
            if quick
            else ax.imshow(matrix, vmin=-1, vmax=1, aspect="auto", **style)
        )
        pictures = [pixels(fig).copy()]
        image.set_data(1.3 * matrix[::-1])
        pictures.append(pixels(fig).copy())
        ax.set(xlim=(-0.8, 1.2), ylim=(0.2, 9))
        pictures.append(pixels(fig).copy())
        image.set_data(matrix[1:])
        image.set_extent((-0.1, 1.9, 1.3, 0.2))
        pictures.append(pixels(fig).copy())
        ax.set(xlim=(30, 40))
        seen.append([*pictures, pixels(fig).copy()])
    assert all((one == other).all() for one, other in zip(*seen, strict=True))


def movable(trained):
    """Every explorer of the course that matplotlib draws and whose controls are here without its notebook."""
    start = *trained, "a fox and a hen"
    yield from (make.values[0]() for make in ALL if make.values[0] is not bars)
    yield scaling.score_factor(*start)
    yield three_tokens([[1, 0.5], [0, 2]], [[1, 1], [-1, 0]], [[0, 1], [2, 1]], ["a", "fox"])
    yield soft_dictionary({"north": 2, "east": 9, "south": 21, "west": 13})
    yield scaling.break_it(*start, bugs.divide_by_d_model)
    yield mask_bugs.break_the_mask(*start, bugs.mask_with_minus_1e4)
    yield residual.break_it(*start, {"no bug at all": bugs.divide_by_d_model})
    yield kv_bugs.break_cache(*start, {"no bug at all": bugs.divide_by_d_model})


def walk(explorer: Explorer) -> list[bytes]:
    """The pictures of one way through all controls."""
    pictures = []
    for control in explorer.controls.values():
        for value in alternatives(control):
            control.value = value
            pictures.append(explorer.picture.value)
    return pictures


def test_a_step_draws_what_a_drawing_of_all_would(trained, monkeypatch):
    """Against a new background and all groups on matplotlib's own canvas, which remembers no word."""
    for explorer in filter(lambda made: isinstance(made, Explorer), movable(trained)):
        walk(explorer)
        quick = walk(explorer)  # both ways begin where the first has ended
        with monkeypatch.context() as patch:
            patch.setattr(Layers, "draw", anew)
            FigureCanvasAgg(explorer.figure)
            assert quick == walk(explorer), explorer.title


DRAW = Layers.draw


def anew(layers: Layers) -> np.ndarray:
    layers.background = None
    return DRAW(layers)
