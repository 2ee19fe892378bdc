"""Notebook 03: its pictures show what they are given, its explorers compute what they say, its bug is real."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, record
from transformer_lib.attention import MultiHeadAttention, scaled_dot_product_attention
from transformer_lib.explorers.scaling import CHECKS, LONGEST, break_it, draws, saturate, saturation_lab, score_factor
from transformer_lib.lessons import bugs
from transformer_lib.plots import scaling as plots
from transformer_lib.plots.style import pixels

TEXT = "a fox, a hen"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=256))
    model.initialize(std=0.3)  # wide scores, so that factors and bugs change something
    return model.eval()


@pytest.fixture(scope="module")
def factor(model):
    return score_factor(model, Letters(), TEXT)


@pytest.fixture(scope="module")
def broken(model):
    return break_it(model, Letters(), TEXT, bugs.divide_by_d_model)


def numbers(summary):
    return [float(n) for n in re.findall(r"\d+\.?\d*(?:e-\d+)?", summary)]


def test_every_control_moves_the_picture(factor, broken):
    for shown in (saturation_lab(), factor, broken):
        start = shown.summary
        for name, control in shown.controls.items():
            before, picture = control.value, shown.picture.value
            others = [option for option in getattr(control, "options", ()) if option != before]
            typed = {"sentence": "Kim", "on": True, "divided": True, "factor": 8.0, "temperature": 4.0}
            control.value = others[0] if others else typed.get(name) or control.max
            assert shown.error.value == "" and shown.picture.value != picture, name
            control.value = before
            assert shown.summary == start, name


@pytest.mark.parametrize(("d_k", "divided", "temperature", "n_keys"), [(64, False, 1.0, 16), (256, True, 0.5, 9)])
def test_lab_says_what_torch_computes(d_k, divided, temperature, n_keys):
    shown = saturation_lab()
    for name, value in {
        "d_k": d_k,
        "divided": divided,
        "temperature": temperature,
        "n_keys": n_keys,
        "seed": 3,
    }.items():
        shown.controls[name].value = value
    q, keys, g = draws(d_k, 3)
    q = q.clone().requires_grad_()
    scores = q @ keys.T / temperature / (math.sqrt(d_k) if divided else 1)
    a = torch.softmax(scores[:, :n_keys], dim=-1)
    (a * g[:, :n_keys]).sum().backward()
    entropy = torch.distributions.Categorical(a.detach()).entropy().mean() / math.log(2)
    said = numbers(shown.summary)
    assert said[1] == pytest.approx(float(scores.detach().std()), abs=0.006)
    assert said[3] == pytest.approx(float(a.detach().max(-1).values.mean()), abs=0.006)
    assert said[4:6] == pytest.approx([float(entropy), math.log2(n_keys)], abs=0.06)
    assert said[6] == pytest.approx(float(q.grad.norm(dim=-1).median()), rel=0.3)


def test_saturation_gradient_is_autograds():
    q, keys, g = draws(8, 1)
    q = q.clone().requires_grad_()
    (scaled_dot_product_attention(q, keys, torch.eye(64, dtype=q.dtype)) * g).sum().backward()
    *_, gradient = saturate(q.detach(), keys, g, 1 / math.sqrt(8))
    torch.testing.assert_close(gradient, q.grad)


def test_factor_changes_loss_and_map_as_a_changed_scale_does(model, factor):
    factor.controls["factor"].value = 4.0
    ids = torch.tensor([Letters().encode(TEXT)])
    layers = [block.attention for block in model.blocks]
    try:
        for layer in layers:
            layer.scale *= 4
        with torch.no_grad(), record(model) as seen:
            loss = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    finally:
        for layer in layers:
            layer.scale /= 4
        factor.controls["factor"].value = 1.0
    factor.controls["factor"].value = 4.0
    said = numbers(factor.summary)
    factor.controls["factor"].value = 1.0
    largest = seen["blocks.1.attention.weights"][0, 0, 1:].amax(-1).mean()
    assert (said[1], said[-1]) == pytest.approx((float(loss), float(largest)), abs=0.006)


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(factor, broken, text):
    for shown in (factor, broken):
        shown.controls["sentence"].value = text
        assert shown.error.value == ""
        assert ("only the first" in shown.summary) == (len(text) > LONGEST)
        shown.controls["sentence"].value = TEXT


def test_exactly_one_check_sees_the_bug(model):
    ids = torch.tensor([Letters().encode(TEXT)])
    model_checks = {name: check for name, check in CHECKS.items() if name != "loss beats a guess"}  # it is untrained
    with torch.no_grad():
        assert all(check(model, ids)[0] for check in model_checks.values())
        with bugs.divide_by_d_model():
            assert [name for name, check in model_checks.items() if not check(model, ids)[0]] == ["= torch, many heads"]


@pytest.mark.parametrize("fused", [True, False])
def test_bug_divides_by_d_model_and_goes_away(model, fused):
    ids = torch.tensor([Letters().encode(TEXT)])
    original = MultiHeadAttention.attend

    def logits():
        with torch.no_grad():
            if fused:
                return model(ids)
            with record(model) as seen:
                model(ids)
            q, k, s = (seen[f"blocks.0.attention.{name}"] for name in ("q", "k", "scores"))
            return s / (q @ k.transpose(-2, -1))

    right = logits()
    with pytest.raises(KeyError), bugs.divide_by_d_model(model):
        wrong = logits()
        raise KeyError
    assert MultiHeadAttention.attend is original
    torch.testing.assert_close(logits(), right)
    assert not torch.allclose(wrong, right, atol=1e-3)
    if not fused:
        torch.testing.assert_close(wrong, torch.full_like(wrong, 1 / math.sqrt(24)), rtol=1e-3, atol=1e-3)


def test_bug_in_one_model_leaves_another_alone(model):
    ids = torch.tensor([Letters().encode(TEXT)])
    torch.manual_seed(1)
    other = Transformer(model.cfg).eval()
    other.initialize(std=0.3)
    with torch.no_grad():
        right = other(ids)
        with bugs.divide_by_d_model(model):
            torch.testing.assert_close(other(ids), right)
        with bugs.divide_by_d_model():
            assert not torch.allclose(other(ids), right, atol=1e-3)


def test_every_bug_says_what_it_is():
    for name, one in bugs.BUGS.items():
        assert getattr(bugs, name) is one and one.name == name
        assert one.sentence.endswith(".") and 1 <= one.lesson <= 12
    with pytest.raises(TypeError, match="takes a model"):
        bugs.divide_by_d_model("toy")


def test_spread_picture_holds_the_measured_variances():
    variances = {2**i: 2.0**i * 1.01 for i in range(11)}
    fig = plots.spread({4: np.random.default_rng(0).normal(0, 2, 500)}, variances)
    assert list(fig.axes[1].lines[1].get_ydata()) == list(variances.values())


def test_weights_and_jacobians_pictures_show_their_numbers():
    raw, divided = np.array([0.9, 0.1, 0.0]), np.array([0.5, 0.3, 0.2])
    axes = plots.one_draw(raw, divided).axes
    assert [[bar.get_height() for bar in ax.patches] for ax in axes] == [list(raw), list(divided)]
    maps = plots.jacobians(np.diag(raw), -np.diag(divided)).axes
    assert np.allclose(maps[1].images[0].get_array(), -np.diag(divided))


def test_other_pictures_draw():
    widths = [2**i for i in range(11)]
    measured = {name: list(np.linspace(0.4, 0.1, 11)) for name in ("entropy", "largest weight", "Jacobian's norm")}
    looks = [(0, {"entropy": 0.9, "q": 0.1, "k": 0.2}), (2, {"entropy": 0.5, "q": 0.01, "k": 0.02})]
    runs = {(start, on): ([3.0, 2.0], looks, 2.5) for start in ("a", "b") for on in (True, False)}
    figures = (
        plots.against_width(widths, {True: measured, False: measured}, 4.0),
        plots.gradient_at_queries(widths, {True: [np.ones(9)] * 11, False: [np.full(9, 1e-12)] * 11}),
        plots.divisors({"one": np.array([0.7, 0.3]), "two": np.array([0.5, 0.5])}),
        plots.trained_pairs(runs, start="a"),
    )
    for fig in figures:
        assert pixels(fig).std() > 0
    assert len(figures[-1].axes[0].lines) == 4 and len(figures[-1].axes[2].lines) == 4
