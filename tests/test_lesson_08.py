"""Notebook 08: its pictures show the numbers they are given, its explorers follow every control and tell the truth."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import PRESETS, EncoderDecoder, Transformer, TransformerConfig
from transformer_lib.accounting import count_parameters
from transformer_lib.explorers.model_picture import model_drawing, model_picture
from transformer_lib.explorers.stacking import BARS, DRAWS, LONGEST, NEW, how_deep, orders, run_blocks, sampler
from transformer_lib.lessons.checks.stacking_08 import SHAPES
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import stacking as plots
from transformer_lib.plots.style import pixels
from transformer_lib.positions import rotate, rotation
from transformer_lib.training import History


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=64)
    model = Transformer(cfg).eval()
    model.initialize(0.3)  # sure enough of something that every control has an effect
    return model


def words(drawing):
    return [values[1] for kind, *values in drawing.parts if kind == "text"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_picture_of_a_model_shows_its_sizes_and_all_its_numbers(name):
    cfg = PRESETS[name]
    drawing = model_drawing(cfg)
    boxes = [values for kind, *values in drawing.parts if kind == "rect"]  # (place, fill, stroke, hover, radius)
    for (x, y, width, height), *_ in boxes:
        assert x >= 0 and x + width <= drawing.width and y >= 0 and y + height <= drawing.height
    said = " ".join(words(drawing))
    assert f"block × {cfg.n_layers}" in said and f"{cfg.vocab_size:,} × {cfg.d_model:,}" in said
    counts = [re.search(r": ([\d,]+) numbers(?: × \d+ = ([\d,]+))?$", hover) for *_, hover, _radius in boxes]
    stored = sum(int((found[2] or found[1]).replace(",", "")) for found in counts if found)
    shared = cfg.vocab_size * cfg.d_model if cfg.n_encoder_layers else 0  # one table, drawn in both columns
    assert stored - shared == count_parameters(cfg).total


def test_an_encoder_decoder_with_pre_norm_can_be_drawn_too():
    said = words(model_drawing(PRESETS["paper-base"].replace(norm_position="pre", n_layers=3)))
    assert "final LayerNorm" in said and {"block × 6", "block × 3"} <= set(said)


def test_the_picture_explorer_follows_its_control():
    shown, pictures = model_picture(), set()
    for name in PRESETS:
        shown.controls["model"].value = name
        assert shown.error.value == "" and shown.summary.startswith(name)
        pictures.add(shown.picture.value)
    assert len(pictures) == len(PRESETS)


def test_running_the_blocks_in_order_is_the_model(model):
    ids = torch.randint(97, (3, 7))
    assert orders(2)["as trained"] == [0, 1] and orders(2)["reversed"] == [1, 0]
    assert orders(6)["first half"] == [0, 1, 2]
    torch.testing.assert_close(run_blocks(model, ids, [0, 1]), model(ids))
    none = F.linear(model.final_norm(model.embedding(ids)), model.unembedding.weight)  # (3, 7, V)
    torch.testing.assert_close(run_blocks(model, ids, []), none)
    assert (run_blocks(model, ids, [1, 0]) - model(ids)).abs().max() > 1e-3


def test_how_deep_tells_the_loss(model):
    shown = how_deep(model, Letters(), "a fox, a hen")
    ids = torch.tensor([Letters().encode("\na fox, a hen")])
    for name, order in orders(2).items():
        shown.controls["blocks"].value = name
        loss = [F.cross_entropy(run_blocks(model, ids, o)[0, :-1], ids[0, 1:]).item() for o in (order, [0, 1])]
        told = [float(n) for n in re.findall(r"\d+\.\d+", shown.summary)]
        assert told == pytest.approx(loss, abs=0.0051)
    rows = [hover for hover in re.findall(r"<title>(.*?)</title>", shown.picture.value) if "as trained" in hover]
    assert len(rows) == 2 * len("a fox, a hen")


def test_the_sampler_tells_what_can_still_be_drawn(model):
    shown = sampler(model, Letters(), "a fox, a hen")
    shown.controls["temperature"].value, shown.controls["top_p"].value = 0.5, 1.0
    shown.controls["top_k"].value = 7
    with torch.no_grad():
        logits = model(torch.tensor([Letters().encode("a fox, a hen")]))[0, -1]
    kept = torch.softmax(logits.topk(7).values / 0.5, dim=0)
    before, after = (float(n) / 100 for n in re.findall(r"(\d+)%", shown.summary))
    assert "7 of 97 tokens" in shown.summary
    assert (before, after) == pytest.approx((float(logits.softmax(0).max()), float(kept[0])), abs=0.0051)
    assert sum(word == "cut" for word in words(shown.drawing)) == BARS - 7
    shown.controls["temperature"].value = 0.0
    assert "1 of 97 tokens" in shown.summary and "100% after" in shown.summary
    assert f"{DRAWS} continuations" in " ".join(words(shown.drawing))


def test_every_control_moves_the_picture(model):
    typed = {"prompt": "Kim", "sentence": "Kim"}
    for shown in (sampler(model, Letters(), "a fox, a hen"), how_deep(model, Letters(), "a fox, a hen")):
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            others = [option for option in getattr(control, "options", ()) if option != before]
            control.value = others[0] if others else typed.get(name) or (3 if name == "top_k" else control.max)
            assert shown.error.value == "" and shown.picture.value != picture, name
            assert shown.summary != summary or name == "seed", name
            control.value = before
            assert shown.summary == summary, name


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(model, text):
    for shown in (sampler(model, Letters(), "a fox"), how_deep(model, Letters(), "a fox")):
        shown.controls["prompt" if "prompt" in shown.controls else "sentence"].value = text
        assert shown.error.value == "" and shown._pixels().shape[1] == 1600
        limit = model.cfg.max_seq_len - NEW if "prompt" in shown.controls else LONGEST - 1
        length = len(text if text.strip() else "Once upon a time")  # what an empty box shows
        assert ("only the first" in shown.summary) == (length > limit)


def test_training_curves_show_both_runs_and_all_yardsticks():
    full = History(losses=[4.0, 3.0, 2.0], evaluations=[(3, 2.5)], learning_rates=[1.0, 2.0, 1.0])
    live = History(losses=[4.5, 3.5], learning_rates=[0.5, 1.5])
    fig = plots.training_curves(full, live, {"guessing": 6.9, "often": 5.5, "floor": 0.4})
    top, below = fig.axes
    curves = [line.get_ydata() for line in top.lines]
    assert [list(curve) for curve in curves[:3]] == [[4.0, 3.0, 2.0], [2.5], [4.5, 3.5]]
    assert [text.get_text() for text in top.texts] == ["guessing: 6.90", "often: 5.50", "floor: 0.40"]
    assert [list(line.get_ydata()) for line in below.lines] == [[1.0, 2.0, 1.0], [0.5, 1.5]]


def test_bars_are_the_numbers_they_are_given():
    fig = plots.sampling(["a", "$b$"], {"plain": [0.7, 0.3], "cold": [0.9, 0.1]})
    assert [bar.get_height() for bar in fig.axes[1].patches] == [0.7, 0.3, 0.9, 0.1]
    bars = plots.arrangements({"none": 9.0, "as trained": 0.5}, 6.9)
    assert [bar.get_width() for bar in bars.axes[0].patches] == [9.0, 0.5]
    assert all(pixels(figure).std() > 0 for figure in (fig, bars))


def test_cross_maps_frame_the_known_alignment():
    weights = np.full((3, 4), 0.25)
    fig = plots.cross_maps({"one": weights, "two": weights}, list("abcd"), list("xyz"), (2, 0))
    frames = [patch.get_xy() for patch in fig.axes[0].patches]
    assert frames == [(1.5, -0.5), (-0.5, 0.5)]


@pytest.mark.parametrize("n_stored", [0, 2])
def test_translation_progress_adds_stored_runs_where_there_are_any(n_stored):
    run = {"steps": 700, "curve": [[100, 3.0], [700, 0.9]], "alignment_heads": [[0.9, 0.8], [0.7, 0.6]]}
    fig = plots.translation_progress(History(losses=[5.0, 4.0]), [[0.2, 0.3], [0.4, 0.1]], 0.11, [run] * n_stored)
    left, right = fig.axes
    assert len(left.lines) == 1 + n_stored and len(right.patches) == 4
    assert [bar.get_height() for bar in right.patches] == [0.2, 0.3, 0.4, 0.1]


def test_the_learners_model_is_judged_on_shapes_that_do_not_coincide():
    for cfg in SHAPES:
        sizes = (cfg.vocab_size, cfg.d_model, cfg.n_layers, cfg.n_heads, cfg.d_k, cfg.ff_width, cfg.n_heads * cfg.d_k)
        assert len(set(sizes)) == len(sizes)
    verdict = registry()["whole_model"].judge(lambda ids, weights, cfg: torch.zeros(*ids.shape, cfg.vocab_size))
    assert verdict.status == "wrong"


def by_hand(turn="qk", out="unembedding", swap=False, n_layers=None, end=lambda logits: logits):
    """The whole model in plain lines, with the slips that a learner may make."""

    def norm(x, weight, cfg):
        return F.rms_norm(x, weight.shape, weight, cfg.norm_eps)

    def attention(x, w, cfg):
        q, k, v = ((x @ w(f"attention.w_{n}").T).unflatten(-1, (cfg.n_heads, -1)).transpose(1, 2) for n in "qkv")
        cos_sin = rotation(torch.arange(x.shape[1]), cfg.d_k)
        q, k, v = (rotate(y, *cos_sin) if name in turn else y for name, y in zip("qkv", (q, k, v), strict=True))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, d_k)
        return heads.transpose(1, 2).flatten(2) @ w("attention.w_o").T

    def mlp(x, w):
        gate, up = ("mlp.w_3", "mlp.w_1") if swap else ("mlp.w_1", "mlp.w_3")
        return (F.silu(x @ w(gate).T) * (x @ w(up).T)) @ w("mlp.w_2").T

    def run(ids, weights, cfg):
        x = weights["embedding.weight"][ids]
        for i in range(cfg.n_layers if n_layers is None else n_layers):
            w = lambda name, i=i: weights[f"blocks.{i}.{name}.weight"]  # noqa: E731
            x = x + attention(norm(x, w("attention_norm"), cfg), w, cfg)
            x = x + mlp(norm(x, w("mlp_norm"), cfg), w)
        return end(norm(x, weights["final_norm.weight"], cfg) @ weights[f"{out}.weight"].T)

    return run


def test_a_model_by_hand_is_right():
    assert registry()["whole_model"].judge(by_hand()).status == "right"


def nucleus(order, back=True, end=lambda kept: kept / kept.sum()):
    """The cut of top-p with the tokens in some order."""

    def attempt(probabilities, p):
        at = order(probabilities)
        ordered = probabilities[at]
        kept = ordered.masked_fill(ordered.cumsum(0) - ordered >= p, 0)
        return end(kept[at.argsort()] if back else kept)

    return attempt


def likeliest_first(probabilities):
    return probabilities.argsort(descending=True)


SLIPS = [
    ("top_p", nucleus(likeliest_first, back=False), "the result is sorted"),
    ("top_p", nucleus(lambda p: torch.arange(len(p))), "the sum runs in the order of the ids"),
    ("top_p", nucleus(likeliest_first, end=lambda p: p.masked_fill(p == 0, -torch.inf).softmax(0)), "second softmax"),
    ("whole_model", by_hand(turn="qkv"), "the values are turned too"),
    ("whole_model", by_hand(out="embedding"), "this reads the logits from the embedding"),
    ("whole_model", by_hand(swap=True), "W₁ and W₃ have changed places"),
    ("whole_model", by_hand(n_layers=1), "only block 0 runs"),
    ("whole_model", by_hand(end=lambda logits: logits.softmax(-1)), "these are probabilities"),
]


@pytest.mark.parametrize(("name", "slip", "said"), SLIPS)
def test_the_usual_slips_are_named(name, slip, said):
    verdict = registry()[name].judge(slip)
    assert verdict.status == "wrong" and said in verdict.message


def test_the_source_reaches_the_target_through_cross_attention():
    """Another source, other logits: the target's logits depend on what the encoder wrote."""
    torch.manual_seed(0)
    cfg = PRESETS["paper-base"].replace(vocab_size=19, d_model=16, n_heads=2, n_layers=2, n_encoder_layers=1, d_ff=24)
    model, target = EncoderDecoder(cfg).eval(), torch.randint(19, (1, 5))
    model.initialize(0.4)
    one, other = (model(torch.randint(19, (1, 7)), target) for _ in range(2))
    assert (one - other).abs().max() > 1e-4
