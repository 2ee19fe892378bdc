"""Notebook 07: neurons are read as they are, its explorers compute what they say, its pictures show what they get."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, edit, record
from transformer_lib.corpus import fresh_stories
from transformer_lib.explorers.mlp import activation_family, gate, neuron, swish
from transformer_lib.explorers.neurons import LONGEST, PROMOTED, context, distinct, knock_out, neuron_browser, silence
from transformer_lib.lessons.exercises import registry
from transformer_lib.losses import token_losses
from transformer_lib.neurons import foretold, kept_share, moments, promoted, values
from transformer_lib.plots import mlp as plots
from transformer_lib.plots.style import pixels
from transformer_lib.recording import zero

TEXT = "a fox, a hen"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, d_ff=37, max_seq_len=1024)
    model = Transformer(cfg)
    model.initialize(std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def found(model):
    return moments(model, Letters(), fresh_stories(3))


@pytest.fixture(scope="module")
def browser(model, found):
    return neuron_browser(model, Letters(), found, TEXT)


@pytest.fixture(scope="module")
def knocked(model, found):
    return knock_out(model, Letters(), found, TEXT)


def test_moments_are_the_recorded_neurons(model, found):
    stories = fresh_stories(3)
    assert len(found.row) == sum(len(story.text) + 1 for story in stories)  # every token but the first newline
    for row, story in enumerate(stories):
        ids = torch.tensor([Letters().encode(f"\n{story.text}\n")])
        with torch.no_grad(), record(model) as seen:
            model(ids)
        mine = found.row == row
        torch.testing.assert_close(found.hidden[1, mine], seen["blocks.1.mlp.hidden"][0, :-1], rtol=1e-4, atol=1e-4)
        assert found.following[mine].tolist() == ids[0, 1:].tolist()
        assert [found.pieces[row][i] for i in found.at[mine]] == list(f"\n{story.text}")


def test_loudness_and_loudest_are_what_their_names_say(model, found):
    h, w = found.hidden[0], model.blocks[0].mlp.w_2.weight
    written = h[:, 5, None] * w[:, 5]  # (N, d_model)
    loud = found.loudness(model, 0)
    assert float(loud[5]) == pytest.approx(float(written.detach().square().sum(-1).mean().sqrt()), rel=1e-4)
    for sign in (1, -1):
        best = found.loudest(0, 5, sign, 4)
        strongest = sorted((sign * h[:, 5]).tolist(), reverse=True)[:4]
        assert [value for value, *_ in best] == pytest.approx([sign * value for value in strongest])
        value, row, at = best[0]
        assert h[(found.row == row) & (found.at == at), 5].item() == pytest.approx(value)


def test_promoted_is_the_change_of_the_logits_against_their_mean(model):
    """Adding a value to a stream whose norm divides by the same number raises the logits by `promoted`."""
    one = model.final_norm.weight * values(model, 1)[:, 7]
    logits = model.unembedding.weight @ one
    torch.testing.assert_close(promoted(model, 1)[:, 7], (logits - logits.mean()).detach(), rtol=1e-4, atol=1e-5)


def test_kept_share_of_the_same_neurons_everywhere_is_less():
    hidden, value = torch.eye(4)[[0, 0, 1, 2]], torch.eye(4)  # one neuron writes at each token, mostly the first
    assert kept_share(hidden, value, 1) == 1 and kept_share(hidden, value, 1, same=True) == 0.5


def test_kept_share_ends_at_one_and_matches_a_loop():
    torch.manual_seed(1)
    hidden, value = torch.randn(5, 11), torch.randn(7, 11)
    shares = [kept_share(hidden, value, k) for k in range(12)]
    assert shares[0] == pytest.approx(0, abs=1e-6) and shares[-1] == pytest.approx(1)
    missing, whole = 0.0, 0.0
    for h in hidden:
        loud = sorted(range(11), key=lambda n: -abs(h[n]) * value[:, n].norm())
        missing += sum(h[n] * value[:, n] for n in loud[4:]).square().sum()
        whole += (value @ h).square().sum()
    assert shares[4] == pytest.approx(float(1 - missing / whole), rel=1e-4)


def test_foretold_is_chance_for_random_weights_and_one_for_all_tokens(model, found):
    share, chance = foretold(model, found, 0, k=9, most=12)
    assert abs(share - chance) < 0.3 and 0 < chance < 1
    assert foretold(model, found, 1, k=97, most=3) == (1.0, 1.0)


def test_every_control_moves_the_picture(browser, knocked):
    typed = {"sentence": "Kim", "count": 1, "value_angle": 30}
    for shown in (activation_family(), gate(), browser, knocked):
        start = shown.summary
        for name, control in shown.controls.items():
            before, picture = control.value, shown.picture.value
            others = [option for option in getattr(control, "options", ()) if option != before]
            control.value = typed.get(name) or (others[0] if others else control.max)
            assert shown.error.value == "" and shown.picture.value != picture, name
            control.value = before
            assert shown.summary == start, name


@pytest.mark.parametrize(("beta", "x"), [(1.0, -1.0), (4.0, 0.5), (0.1, 3.0)])
def test_family_says_what_torch_computes(beta, x):
    shown = activation_family()
    shown.controls["beta"].value, shown.controls["x"].value = beta, x
    at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = at / (1 + torch.exp(-beta * at))
    value.backward()
    said = [float(n.replace("−", "-")) for n in re.findall(r"−?\d+\.\d+", shown.summary)]
    assert said[3:5] == pytest.approx([float(value.detach()), float(at.grad)], abs=0.006)
    if beta == 1.0:
        torch.testing.assert_close(swish(at, 1.0), F.silu(at))


def test_gate_draws_its_neuron_the_right_way_up():
    shown = gate()
    shown.controls["gate_angle"].value, shown.controls["value_angle"].value = 90, 0
    image = np.asarray(shown.figure.axes[0].images[0].get_array())
    assert image[0, -1] == pytest.approx(float(F.silu(torch.tensor(4.0)) * 2), rel=1e-4)  # top right: x = (2, 2)
    assert image[-1, -1] == pytest.approx(float(F.silu(torch.tensor(-4.0)) * 2), rel=1e-4)  # bottom right: (2, −2)
    g = torch.tensor([-1.0, 2.0])
    assert neuron("ReLU", g, None).tolist() == [0, 2] and torch.equal(neuron("GELU", g, None), F.gelu(g))


def test_browser_shows_the_strongest_moments(browser, model, found):
    neuron_ = int(found.loudness(model, 1).argmax())
    chosen = distinct(found, 1, neuron_, 1)
    assert chosen[0][0] == pytest.approx(float(found.hidden[1, :, neuron_].max()))
    assert len({context(found, n) for _, n in chosen}) == len(chosen) == 8
    best = promoted(model, 1)[:, neuron_].topk(PROMOTED).indices
    right = sum(int(found.following[n]) in best.tolist() for _, n in chosen)
    assert f"At {right} of these 8 moments" in browser.summary and f"neuron {neuron_}," in browser.summary


def test_knock_out_says_the_losses_of_the_silenced_model(knocked, model):
    ids = torch.tensor([Letters().encode("\n" + TEXT)])
    with torch.no_grad():
        whole = token_losses(model(ids)[0, :-1], ids[0, 1:]).mean()
        with edit(model, {"blocks.1.mlp.output": zero}):
            silent = token_losses(model(ids)[0, :-1], ids[0, 1:]).mean()
    assert f"{whole:.2f} → {silent:.2f} nats" in knocked.summary
    knocked.controls["count"].value = 0
    assert f"{whole:.2f} → {whole:.2f} nats" in knocked.summary
    knocked.controls["count"].value = 37


def test_the_right_ids_in_the_wrong_order_are_named():
    verdict = registry()["promoted_ids"].judge(lambda w_2, table, n, k: (table @ w_2[:, n]).argsort()[-k:])
    assert (verdict.status, verdict.message) == ("wrong", "these are the right ids, weakest first")


def test_silence_takes_the_named_neurons_alone():
    hidden = torch.ones(2, 3, 5)
    assert silence(torch.tensor([1, 4]))(hidden)[1, 2].tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 90, "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(browser, knocked, text):
    for shown in (browser, knocked):
        shown.controls["sentence"].value = text
        assert shown.error.value == ""
        assert ("only the first" in shown.summary) == (len(text) > LONGEST)
        shown.controls["sentence"].value = TEXT


def test_pictures_hold_their_numbers():
    x, hidden, y = np.eye(4)[:, :2], 2 * np.eye(4), np.eye(4)[:, :2]
    names = {"x": ["a", "b"], "hidden": list("abcd"), "y": ["c", "d"]}
    assert np.allclose(plots.four_cases(x, hidden, y, names).axes[1].images[0].get_array(), hidden)
    bars = plots.knock_outs({("MLP", 0): 3.0, ("attention", 0): 2.0}, 1.0, 5.0).axes[0].patches
    assert [bar.get_width() for bar in bars] == [3.0, 2.0]
    areas = [p.get_width() * p.get_height() for p in plots.to_scale(30, 80).axes[0].patches]
    assert [sum(areas[i:j]) / 900 for i, j in ((0, 4), (4, 6), (6, 9), (9, 12))] == pytest.approx([4, 8, 12, 8])
    line = plots.concentration({0: [(1, 0.5), (2, 1.0)]}, 7).axes[0].lines[0]
    assert list(line.get_ydata()) == [0.5, 1.0]
    at = np.linspace(-2, 2, 5)
    figures = (plots.curves(at, {"a": at}, {"a": at**2}), plots.who_moves(np.eye(3), np.eye(3), ["x", "y", "z"]))
    assert all(pixels(fig).std() > 0 for fig in figures)
