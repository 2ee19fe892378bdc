"""Notebook 02: its pictures show the numbers they are given, its explorers follow every control and tell the truth."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, record
from transformer_lib.explorers.attention import LONGEST, attention_map, soft_dictionary, three_tokens, turned
from transformer_lib.lessons import SENTENCE
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import attention as plots
from transformer_lib.plots.style import pixels

TOKENS = ["sun", "$x$", "moon"]
WINDS = {"north": 4, "east": 12, "south": 22, "west": 15}


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=256)
    return Transformer(cfg).eval()


@pytest.fixture
def explorer(model):
    return attention_map(model, Letters(), "a fox, a hen", row=9)


def numbers(summary):
    return [float(n.replace("−", "-")) for n in re.findall(r"[−-]?\d+\.\d+", summary)]


def test_sentence_is_short_and_ends_with_the_pronoun_of_its_name():
    assert SENTENCE.split()[-1] == "She" and "Mia" in SENTENCE


def test_three_tokens_summary_is_what_torch_computes(vectors):
    q, k, v = vectors
    shown = three_tokens(q, k, v, TOKENS)
    shown.controls["q1"].value, shown.controls["k2"].value, shown.controls["stretch"].value = 35, -80, 0.7
    queries, keys = 0.7 * turned(q, [0, 35, 0]), turned(k, [0, 0, -80])
    weights = torch.softmax(queries @ keys.T / math.sqrt(2), dim=1)
    outputs = F.scaled_dot_product_attention(queries[None], keys[None], v[None])[0]
    expected = [*weights.max(dim=1).values.tolist(), *outputs[-1].tolist()]
    assert numbers(shown.summary) == pytest.approx(expected, abs=0.0051)


def test_turning_keeps_lengths_and_goes_anticlockwise(vectors):
    q = vectors[0]
    assert torch.allclose(turned(q, [10, 90, -170]).norm(dim=1), q.norm(dim=1))
    assert torch.allclose(turned(q, [0, 90, 0])[1], torch.stack((-q[1, 1], q[1, 0])))


@pytest.mark.parametrize("length", [0.0, 2.0, 30.0])
def test_soft_dictionary_goes_from_the_mean_to_the_nearest_entry(length):
    shown = soft_dictionary(WINDS)
    shown.controls["direction"].value, shown.controls["length"].value = 100, length
    angle = math.radians(100)
    dots = length * np.array([math.cos(angle), math.sin(angle), -math.cos(angle), -math.sin(angle)]) / math.sqrt(2)
    weights = np.exp(dots - dots.max()) / np.exp(dots - dots.max()).sum()
    gap, largest, answer = numbers(shown.summary)[:3]
    top = np.sort(dots)[::-1]
    assert (gap, largest) == pytest.approx((top[0] - top[1], weights.max()), abs=0.0051)
    assert answer == pytest.approx(weights @ list(WINDS.values()), abs=0.051)
    assert answer == pytest.approx({0.0: 13.25, 30.0: 12.0}.get(length, answer), abs=0.051)


def test_a_legend_does_not_make_the_background_be_drawn_again(monkeypatch):
    shown, drawn = soft_dictionary(WINDS), []
    monkeypatch.setattr(shown.layers, "_draw_background", lambda: drawn.append(1))
    for direction in (10, 200, 305):
        shown.controls["direction"].value = direction
    assert drawn == []


def test_every_control_moves_picture_and_summary(vectors, explorer):
    for shown in (three_tokens(*vectors, TOKENS), soft_dictionary(WINDS), explorer):
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            others = [option for option in getattr(control, "options", ()) if option != before]
            typed = {"sentence": "Kim", "row": 5}
            control.value = others[0] if others else typed.get(name) or control.max
            assert shown.error.value == "" and shown.picture.value != picture, name
            assert shown.summary != summary, name
            control.value = before
            assert shown.summary == summary, name


def test_map_shows_the_models_own_weights(model, explorer):
    explorer.controls["layer"].value, explorer.controls["head"].value, explorer.controls["row"].value = 1, 2, 7
    with torch.no_grad(), record(model) as seen:
        model(torch.tensor([Letters().encode("a fox, a hen")]))
    row = seen["blocks.1.attention.weights"][0, 2, 7]
    assert numbers(explorer.summary) == pytest.approx([float(row.max()), 1 / 8], abs=0.0051)
    assert f"({int(row.argmax())});" in explorer.summary
    hovers = re.findall(r"<title>(.*?)</title>", explorer.picture.value)
    assert sum("later, so never seen" in hover for hover in hovers) == 12 * 11 // 2


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_map_survives_awkward_text(explorer, text):
    explorer.controls["sentence"].value = text
    assert explorer.error.value == ""
    assert explorer._pixels().shape[1] == 1600
    (row,) = re.findall(r"\((\d+)\) gives", explorer.summary)
    assert int(row) < LONGEST
    assert ("only the first" in explorer.summary) == (len(text) > LONGEST)


def test_projection_picture_shows_the_products():
    x, w = np.arange(12).reshape(3, 4) % 5 - 2, {"Q": np.eye(4, 2, dtype=int) * 2, "V": np.ones((4, 2), dtype=int)}
    fig = plots.projections(x, w, TOKENS, list("abcd"))
    shown = [text.get_text().replace("−", "-") for text in fig.axes[-1].texts]
    assert shown == [f"{n}" for n in (x @ w["V"]).ravel()]


def test_steps_picture_shows_every_number_and_shape():
    a, b = np.full((3, 3), 0.25), np.full((3, 2), -1.5)
    fig = plots.steps(a, a, a, b, TOKENS)
    assert [len(ax.texts) for ax in fig.axes] == [9, 9, 9, 6]
    assert "(3, 2)" in fig.axes[-1].get_title(loc="left")


def test_shadow_feet_lie_on_the_querys_line():
    query, keys = np.array([2.0, 1.0]), np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])
    ax = plots.shadow(query, keys, "sun", TOKENS).axes[0]
    feet = [line.get_xydata()[0] for line in ax.lines if line.get_marker() == "o"]
    assert np.allclose([foot @ query for foot in feet], keys @ query)
    assert np.allclose([foot[0] * query[1] - foot[1] * query[0] for foot in feet], 0)


def test_outputs_stay_in_the_hull_of_the_values(vectors):
    fig = plots.new_figure(4, 3)
    hull = plots.Hull(fig.subplots(), vectors[2], TOKENS)
    weights = torch.softmax(vectors[0] @ vectors[1].T, dim=1).numpy()
    hull.set(weights)
    assert np.allclose(hull.dots.get_offsets(), weights @ vectors[2].numpy())
    corners = np.vstack([vectors[2].numpy().T, np.ones(3)])  # (3, 3)
    mix = np.linalg.solve(corners, np.vstack([hull.dots.get_offsets().T, np.ones(3)]))  # barycentric coordinates
    assert np.allclose(mix.T, weights) and (mix >= 0).all()


def test_other_pictures_draw():
    maps = [np.tril(np.full((2, 5, 5), 0.3))] * 3
    grid = plots.head_grid(maps, list("abc$_"))
    assert len(grid.axes) == 7  # six heads and the colour bar
    curves = plots.sharpness((4, 50)).axes[0].lines[:2]
    assert [curve.get_ydata()[0] for curve in curves] == pytest.approx([0.25, 0.02])
    for fig in (grid, curves[0].figure):
        assert pixels(fig).std() > 0


def test_the_learners_functions_compose_into_attention_with_a_mask():
    """Notebook 08 builds a block with them: batches of heads, and scores of −∞ where a key may not be seen."""
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    scores = registry()["scores"].reference(q, k).masked_fill(~mask, -math.inf)
    mixed = registry()["softmax"].reference(scores) @ v
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(q, k, v, is_causal=True))
