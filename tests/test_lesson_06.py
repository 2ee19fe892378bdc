"""Notebook 06: the ledger adds up, gradients are autograd's, the explorers say what is computed, the bugs are found."""

import re
import statistics

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, edit, record
from transformer_lib.explorers.ledger import LENGTH, LONGEST, stream_ledger
from transformer_lib.explorers.residual import CHECKS, VECTOR, break_it, gradient_lab, norm_lab
from transformer_lib.gradients import STACK, alike, average, deep_stack, gradient_profile, random_ids
from transformer_lib.ledger import credits, ledger, unembed
from transformer_lib.lessons import bugs
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import residual as plots
from transformer_lib.plots.style import pixels
from transformer_lib.recording import zero_head

TEXT = "a fox, a hen"
BUGS = {"outside": bugs.eps_outside_the_root, "on the stream": bugs.norm_on_the_stream}
SMALL = TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=256, positions="learned")


def build(**changes):
    torch.manual_seed(0)
    model = Transformer(SMALL.replace(**changes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4)
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture
def ids():
    return torch.randint(97, (2, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def explorers(model):
    return [
        norm_lab(),
        gradient_lab(),
        stream_ledger(model, Letters(), TEXT),
        break_it(model, Letters(), TEXT, BUGS),
    ]


def numbers(summary):
    return [float(n.replace("−", "-")) for n in re.findall(r"[−-]?\d+(?:\.\d+)?(?:e-?\d+)?", summary)]


@pytest.mark.parametrize("changes", [{}, {"norm": "layernorm", "bias": True}, {"n_kv_heads": 1, "head_dim": 10}])
def test_ledger_adds_up_and_heads_are_those_that_a_knock_out_removes(changes, ids):
    model = build(**changes)
    book = ledger(model, ids)
    torch.testing.assert_close(book.writes.sum(0), book.streams[-1], atol=1e-4, rtol=1e-4)
    with torch.no_grad(), record(model) as seen, edit(model, {"blocks.1.attention.heads": zero_head(2)}):
        model(ids)
        without = seen["blocks.1.attention.output"].clone()
    with torch.no_grad(), record(model) as seen:
        logits = model(ids)
    difference = seen["blocks.1.attention.output"] - without
    torch.testing.assert_close(book.writes[book.names.index("L1 head 2")], difference, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(unembed(model, book.streams[-1]), logits, atol=1e-4, rtol=1e-4)
    token = 41
    pushed = credits(model, book, token).sum(0)  # (B, T)
    shift = model.final_norm.bias if hasattr(model.final_norm, "bias") else torch.zeros(24)
    logits = logits - model.unembedding(shift)
    torch.testing.assert_close(pushed, logits[..., token] - logits.mean(-1), atol=1e-3, rtol=1e-3)
    assert len(book.names) == len(book.layers) == len(book.writes) and len(set(book.names)) == len(book.names)


@pytest.mark.parametrize("changes", [{"norm_position": "post"}, {"residual": False}])
def test_ledger_refuses_what_is_no_sum(changes, ids):
    with pytest.raises(ValueError, match="pre-norm and the residual"):
        ledger(build(**changes), ids)


@pytest.mark.parametrize("position", ["pre", "post"])
@pytest.mark.parametrize("residual", [True, False])
def test_profile_is_that_of_a_model_with_this_config(position, residual):
    stack, text = deep_stack(5), random_ids(rows=3, length=6)
    profile = gradient_profile(stack, text, 3, position, residual)
    other = Transformer(STACK.replace(n_layers=3, norm_position=position, residual=residual))
    other.load_state_dict(stack.state_dict(), strict=False)
    with record(other, grad=True) as seen:
        loss = F.cross_entropy(other(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    assert profile.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    streams = ["embedding", *(f"blocks.{i}.stream" for i in range(3))]
    torch.testing.assert_close(profile.stream, torch.stack([seen[name].grad.norm() for name in streams]))
    matrices = torch.cat([w.grad.flatten() for w in other.blocks[1].parameters() if w.dim() >= 2])
    assert float(profile.weights[1]) == pytest.approx(float(matrices.norm()), rel=1e-4)
    assert all(block.pre_norm and block.residual for block in stack.blocks)  # the stack itself is as before


def test_likeness_is_the_mean_cosine_of_different_positions():
    x = torch.randn(2, 4, 6)
    pairs = [float(F.cosine_similarity(r[i], r[j], dim=0)) for r in x for i in range(4) for j in range(4) if i != j]
    assert float(alike(x)) == pytest.approx(statistics.fmean(pairs), abs=1e-6)
    assert float(alike(torch.ones(1, 3, 5))) == pytest.approx(1, abs=1e-6)


def test_average_is_the_geometric_mean_of_lengths():
    one, two = (gradient_profile(deep_stack(2, seed=s), random_ids(seed=s), 2) for s in (0, 1))
    assert torch.allclose(average([one, two]).weights, (one.weights * two.weights).sqrt())
    with pytest.raises(ValueError, match="xavier"):
        deep_stack(2, start="zeros")


def test_norm_lab_moves_as_torchs_norms_do():
    shown = norm_lab()
    shown.controls["scale"].value, shown.controls["shift"].value = 0.25, -1.5
    x = 0.25 * VECTOR - 1.5
    layer = F.layer_norm(x, (6,)) - F.layer_norm(VECTOR, (6,))
    rms = F.rms_norm(x, (6,), eps=1e-5) - F.rms_norm(VECTOR, (6,), eps=1e-5)
    assert numbers(shown.summary)[-2:] == pytest.approx([float(d.abs().max()) for d in (layer, rms)], abs=0.0006)


def test_gradient_lab_says_what_the_profile_holds():
    shown = gradient_lab()
    values = {"depth": 7, "position": "pre", "residual": False, "start": "gpt2", "seed": 1}
    for name, value in values.items():
        shown.controls[name].value = value
    profile = gradient_profile(deep_stack(start="gpt2", seed=1), random_ids(seed=1), 7, "pre", False)
    depth, first, last, likeness, size = numbers(shown.summary.replace("gpt2", ""))
    assert depth == 7 and "pre-norm, residual off" in shown.summary
    expected = [float(x) for x in (profile.weights[0], profile.weights[-1], profile.alike[-1], profile.size[-1])]
    assert (first, last) == pytest.approx(expected[:2], rel=0.6)
    assert likeness == pytest.approx(expected[2], abs=0.001) and size == pytest.approx(expected[3], rel=0.06)


def test_ledger_explorer_says_what_the_ledger_holds(model):
    shown = stream_ledger(model, Letters(), TEXT)
    shown.controls["measure"].value, shown.controls["row"].value = LENGTH, 4
    book = ledger(model, torch.tensor([Letters().encode(TEXT)]))
    lengths = book.writes[:, 0, 4].norm(dim=-1)
    share = float(unembed(model, book.streams[-1])[0, 4].softmax(-1).max())
    assert f"{book.names[int(lengths.argmax())]} (+{float(lengths.max()):.1f})" in shown.summary
    assert f"probability {share:.2f}" in shown.summary
    assert len(re.findall("<title>", shown.picture.value)) >= len(TEXT) * (len(book.names) + 3)


def test_every_control_moves_the_picture(explorers):
    for shown in explorers:
        start = shown.summary
        for name, control in shown.controls.items():
            before, picture = control.value, shown.picture.value
            others = [option for option in getattr(control, "options", ()) if option != before]
            control.value = (
                {"sentence": "Kim", "row": 5, "residual": False}.get(name)
                or (others or [None])[0]
                or (False if name == "residual" else control.min)
            )
            assert shown.error.value == "" and shown.picture.value != picture, name
            control.value = before
            assert shown.summary == start, name


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(explorers, text):
    for shown in explorers[2:]:
        shown.controls["sentence"].value = text
        assert shown.error.value == ""
        assert ("only the first" in shown.summary) == (len(text) > LONGEST)


@pytest.mark.parametrize(
    ("bug", "check"), [("outside", "norm = torch's, tiny vectors"), ("on the stream", "stream = sum of writes")]
)
def test_exactly_one_check_sees_each_bug(model, bug, check):
    ids = torch.tensor([Letters().encode(TEXT)])
    checks = {name: passes for name, passes in CHECKS.items() if name != "loss beats a guess"}  # it is untrained
    with torch.no_grad():
        assert all(passes(model, ids)[0] for passes in checks.values())
        for one in (None, model):
            with BUGS[bug](one):
                assert [name for name, passes in checks.items() if not passes(model, ids)[0]] == [check]
        assert all(passes(model, ids)[0] for passes in checks.values())


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_bugs_change_one_thing_alone(norm, ids):
    model = build(norm=norm)
    post = build(norm=norm, norm_position="post")
    with torch.no_grad():
        right, right_post = model(ids), post(ids)
        with bugs.eps_outside_the_root():
            torch.testing.assert_close(model(ids), right, atol=1e-2, rtol=1e-2)
            tiny = 1e-6 * torch.randn(3, 24)
            centred = tiny - tiny.mean(-1, keepdim=True) if norm == "layernorm" else tiny
            wrong = centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5) * model.final_norm.weight
            wrong = wrong + model.final_norm.bias if norm == "layernorm" else wrong
            torch.testing.assert_close(model.final_norm(tiny), wrong, atol=1e-5, rtol=1e-4)
        with bugs.norm_on_the_stream():
            assert not torch.allclose(model(ids), right, atol=1e-2)
            torch.testing.assert_close(post(ids), right_post)  # post-norm normalises the stream by right
        torch.testing.assert_close(model(ids), right)


def test_the_learners_functions_make_the_librarys_block(ids):
    """Notebook 08 builds a block with them."""
    model = build(norm="rmsnorm")
    block, step, norm = model.blocks[0], registry()["pre_norm_step"].reference, registry()["rms_norm"].reference
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        y = step(x, lambda v: norm(v, block.attention_norm.weight, 1e-5), lambda v: block.attention(v, causal=True))
        y = step(y, lambda v: norm(v, block.mlp_norm.weight, 1e-5), block.mlp)
        torch.testing.assert_close(y, block(x, causal=True), atol=1e-4, rtol=1e-4)


def test_pictures_show_their_numbers():
    found = {name: {d: gradient_profile(deep_stack(4), random_ids(), d) for d in (2, 4)} for name in ("one", "two")}
    profiles = plots.profiles(found)
    assert np.allclose(profiles.axes[0].lines[0].get_ydata(), found["one"][2].weights)
    sizes = np.logspace(-5, 1, 7)
    written = plots.written(np.arange(6).reshape(2, 3) + 1.0, ["embedding", "L0 MLP"], ["a", "$b", "c"])
    areas = [
        disc.get_sizes()[0] if len(disc.get_sizes()) == 1 else disc.get_sizes() for disc in written.axes[0].collections
    ]
    assert np.allclose(areas[1] / areas[0], [4 / 1, 5 / 2, 6 / 3])
    runs = {"post-norm, warm-up": np.linspace(7, 3, 20), "pre-norm, no warm-up": np.linspace(7, 4, 20)}
    curves = {name: [[(1, 6.0), (9, 4.0)], [(1, 6.5), (9, 5.0)]] for name in runs}
    rising, falling = np.arange(1, 31) / 1e5, 1 / np.sqrt(np.arange(1, 31)) / 1e3
    for fig in (
        profiles,
        written,
        plots.tiny_vectors(sizes, {"right": sizes / 10, "wrong": sizes / 20}),
        plots.tiny_vectors(sizes, {"right": sizes / 10}, streams=(0.1, 20.0)),
        plots.schedule(np.minimum(rising, falling), 20, rising, falling),
        plots.trained(runs, 5.0, "a level", warmup=8),
        plots.stored(curves, 60.0),
        plots.sizes([1.0, 2.0], [1.0, 1.0], ["a", "_b"], [3.0, 4.0], [1.0, 1.0]),
        plots.lens(["a", "$b"], [["x", "y"], ["$z", "w"]], [[0.1, 0.9], [0.5, 1.0]], ["embedding", "after block 0"]),
    ):
        assert pixels(fig).std() > 0
    assert plots.style_of("post-norm, no warm-up")["ls"] == "-"
    assert (
        plots.style_of("post-norm, warm-up")["ls"] != "-" and plots.style_of("pre-norm, warm-up")["color"] == plots.PRE
    )
