"""Notebook 04: its pictures show what they are given, the atlas and the film tell the truth, names need evidence."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, edit, record
from transformer_lib.explorers.heads import LONGEST, head_atlas, induction_film
from transformer_lib.head_scores import Scores, named_heads
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import heads as plots
from transformer_lib.plots.style import pixels
from transformer_lib.recording import zero_head

TEXT = "a fox, a hen"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=256))
    model.initialize(std=0.3)  # wide scores, so that heads differ and knock-outs cost something
    return model.eval()


@pytest.fixture(scope="module")
def atlas(model):
    return head_atlas(model, Letters(), TEXT, row=9, jobs={(1, 2): ["name", "quote"]})


@pytest.fixture(scope="module")
def frames():
    generator = np.random.default_rng(4)

    def frame(step):
        maps = np.tril(generator.random((2, 3, 5, 5)))
        return {"step": step, "loss": 3 - step / 100, "induction": generator.random((2, 3)),
                "previous": generator.random((2, 3)), "maps": maps}  # fmt: skip

    return [frame(step) for step in (0, 10, 20, 30)]


@pytest.fixture
def film(frames):
    return induction_film(frames, list("ABABA"), {2: 1, 3: 2})


def numbers(summary):
    return [float(n) for n in re.findall(r"\d+\.\d+", summary)]


def hovers(shown):
    return re.findall(r"<title>(.*?)</title>", shown.picture.value)


def test_every_control_moves_picture_and_summary(atlas, film):
    for shown in (atlas, film):
        start = shown.summary
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            others = [option for option in getattr(control, "_options_values", ()) if option != before]
            control.value = others[0] if others else {"sentence": "Kim", "row": 5, "knock_out": True}[name]
            assert shown.error.value == "" and shown.picture.value != picture, name
            assert shown.summary != summary, name
            control.value = before
            assert shown.summary == start, name


def test_atlas_shows_the_models_own_weights_and_losses(model, atlas):
    set_to(atlas, layer=0, head=1, row=7, knock_out=False)
    ids = torch.tensor([Letters().encode(TEXT)])
    with torch.no_grad(), record(model) as seen:
        loss = float(F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]))
    row = seen["blocks.0.attention.weights"][0, 1, 7]
    assert numbers(atlas.summary) == pytest.approx([float(row.max()), loss], abs=0.0051)
    for layer in range(2):
        for head in range(3):
            weight = float(seen[f"blocks.{layer}.attention.weights"][0, head, 7, 2])
            said = [h for h in hovers(atlas) if h.startswith(f"layer {layer}, head {head}: ")]
            assert len(said) == len(TEXT) and said[2].endswith(f"{weight:.3f}")


def test_knock_out_is_the_edit_and_moves_the_losses(model, atlas):
    set_to(atlas, layer=0, head=2, row=8, knock_out=True)
    ids = torch.tensor([Letters().encode(TEXT)])
    with torch.no_grad():
        before = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
        with edit(model, {"blocks.0.attention.heads": zero_head(2)}), record(model) as seen:
            after = F.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
    worst = int((after - before).argmax())
    largest = seen["blocks.0.attention.weights"][0, 2, 8].max()
    expected = [float(x) for x in (largest, before.mean(), after.mean(), before[worst], after[worst])]
    assert numbers(atlas.summary) == pytest.approx(expected, abs=0.0051)
    assert f"with the head knocked out {float(after[3]):.2f}" in "".join(hovers(atlas))
    strips = [h for h in hovers(atlas) if h.startswith("layer 1, head 0: ")]  # a later layer reads the changed stream
    assert strips[4].endswith(f"{float(seen['blocks.1.attention.weights'][0, 0, 8, 4]):.3f}")
    set_to(atlas, knock_out=False)


def test_names_stand_beside_their_head_alone(atlas):
    words = [part[2] for part in atlas.drawing.parts if part[0] == "text"]
    assert [word for word in words if "name" in word] == ["layer 1, head 2 · name, quote"]


def test_atlas_can_start_with_its_surest_head_knocked_out(model):
    shown = head_atlas(model, Letters(), TEXT, row=9, knock_out=True)
    assert "Knocked out: loss" in shown.summary and shown.controls["layer"].value == 1


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
@pytest.mark.parametrize("knock_out", [True, False])
def test_awkward_text_survives(atlas, text, knock_out):
    set_to(atlas, sentence=text, row=LONGEST - 1, knock_out=knock_out)
    assert atlas.error.value == "" and atlas._pixels().shape[1] == 1600
    assert ("only the first 32 of" in atlas.summary) == (len(text) > LONGEST)
    set_to(atlas, sentence=TEXT, knock_out=False)


def test_film_says_and_shows_the_chosen_frame(frames, film):
    set_to(film, step=10, which=(1, 0))
    frame = frames[1]
    expected = [frame["loss"], frame["induction"][1, 0], frame["previous"][1, 0]]
    assert numbers(film.summary) == pytest.approx(expected, abs=0.0051)
    drawn = film.figure.axes[2].images[0].get_array()
    assert np.allclose(np.tril(drawn.filled(0)), frame["maps"][1, 0])
    assert [tuple(patch.get_xy()) for patch in film.figure.axes[2].patches] == [(0.5, 1.5), (1.5, 2.5)]


def test_a_name_needs_a_high_score_far_above_chance_and_the_untrained_model():
    def scores(*by_head, chance):
        return Scores(torch.tensor([by_head]), chance)

    trained = {
        "name": scores(0.9, 0.29, 0.3, chance=0.05),
        "quote": scores(0.5, 0.7, 0.1, chance=0.2),
        "pronoun": scores(0.8, 0.5, 0.2, chance=0.1),
    }
    untrained = {job: scores(0.05, 0.05, 0.05, chance=s.chance) for job, s in trained.items()}
    untrained["pronoun"] = scores(0.2, 0.1, 0.1, chance=0.1)
    assert named_heads(trained, untrained) == {(0, 0): ["name", "pronoun"], (0, 2): ["name"], (0, 1): ["quote"]}


def test_pictures_show_their_numbers():
    x = np.arange(24).reshape(3, 8)
    right = x.reshape(3, 2, 4).swapaxes(0, 1)
    fig = plots.cut(x, right, x.reshape(2, 3, 4))
    assert [len(ax.texts) for ax in fig.axes] == [24, 12, 12, 12, 12]
    assert np.allclose(fig.axes[2].images[0].get_array(), right[1])
    fig = plots.writes(np.ones((3, 5)), np.full(5, -0.04))
    assert {text.get_text() for text in fig.axes[1].texts} == {"0.0"}
    fig = plots.knock_outs([[1.0, -2.0], [0.0, 0.5]], ["a", "b"], ["all", "x"])
    assert [text.get_text() for text in fig.axes[0].texts] == ["+1.00", "−2.00", "+0.00", "+0.50"]
    dots = plots.score_dots(
        {"name": Scores(torch.tensor([[0.1, 0.9], [0.3, 0.2]]), 0.05)}, {"name": Scores(torch.tensor([[0.07]]), 0.05)}
    )
    assert sorted(x for points in dots.axes[0].collections for x, _ in points.get_offsets()) == pytest.approx(
        [0.1, 0.2, 0.3, 0.9]
    )


def test_other_pictures_draw(frames):
    figures = (
        plots.one_or_two([(3, 5), (5, 3), (4, 4)]),
        plots.split_cost(12, [1, 2, 3, 4, 6, 12], [576] * 6),
        plots.forming(frames, frames[:3], 3.26),
    )
    for fig in figures:
        assert pixels(fig).std() > 0
    assert list(figures[2].axes[1].lines[0].get_ydata()) == [frame["induction"].max() for frame in frames]


def test_the_learners_functions_are_the_librarys_attention(model):
    """Notebook 08 builds a block with them."""
    layer, cfg = model.blocks[0].attention, model.cfg
    x = torch.randn(2, 5, cfg.d_model)
    matrices = [layer.get_submodule(name).weight.T for name in ("w_q", "w_k", "w_v", "w_o")]
    split, merge, whole = (registry()[name].reference for name in ("split_heads", "merge_heads", "multi_head"))
    torch.testing.assert_close(split(x, 3), layer.split_heads(x, 3))
    torch.testing.assert_close(merge(split(x, 3)), x)
    torch.testing.assert_close(whole(x, *matrices, 3), layer(x))


def set_to(shown, **values):
    for name, value in values.items():
        shown.controls[name].value = value
