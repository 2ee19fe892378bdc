"""Notebook 09: its pictures add up to the closed forms, its explorers follow every control and tell the truth."""

import math
import re

import numpy as np
import pytest
import torch
from small import Letters

from transformer_lib import PRESETS, Transformer, TransformerConfig
from transformer_lib.accounting import (
    count_parameters,
    flops_per_sequence,
    flops_per_token,
    gb,
    training_memory,
)
from transformer_lib.config import CHOICES
from transformer_lib.explorers import configs as config_explorer
from transformer_lib.explorers.configs import FIELDS, KEPT, compare_configs, fields_of, times
from transformer_lib.explorers.parameters import (
    flop_leaves,
    grid,
    parameter_leaves,
    sentence_cost,
    weight_map,
)
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import parameters as plots
from transformer_lib.plots.style import pixels

ALL = pytest.mark.parametrize("name", PRESETS)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=40, n_kv_heads=1)
    return Transformer(cfg).eval()


def numbers(text):
    return [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", text)]


def rectangles(svg):
    """(x, y, width, height) of every rectangle with a hover text."""
    found = re.findall(r'<rect x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)"[^>]*><title>', svg)
    return [tuple(map(float, place)) for place in found]


# --- Parts ---


@ALL
def test_parts_add_up_to_the_closed_forms(name):
    cfg = PRESETS[name]
    assert sum(plots.parameter_parts(cfg).values()) == count_parameters(cfg).total
    assert sum(plots.flop_parts(cfg, 777).values()) == flops_per_token(cfg, 777).total
    assert sum(plots.memory_parts(cfg, 100, 3).values()) == training_memory(cfg, 100, 3).total
    assert sum(leaf[-1] for leaf in parameter_leaves(cfg)) == count_parameters(cfg).total
    layers = cfg.n_layers * (2 if cfg.n_encoder_layers else 1) + cfg.n_encoder_layers
    lost = flops_per_token(cfg, cfg.max_seq_len).total - sum(leaf[-1] for leaf in flop_leaves(cfg))
    assert 0 <= lost < layers, "at most the rounding of one share per block"


def test_parts_hold_what_their_names_say():
    cfg = PRESETS["gpt2-small"]
    parts = plots.parameter_parts(cfg)
    assert parts["embedding"] == 50_257 * 768 and parts["positions"] == 1024 * 768 and parts["unembedding"] == 0
    assert parts["attention"] == 12 * 4 * (768 * 768 + 768)
    assert parts["MLP"] == 12 * (8 * 768 * 768 + 5 * 768) and parts["norms"] == 25 * 2 * 768
    assert plots.flop_parts(cfg, 1)["unembedding"] == 2 * 50_257 * 768, "a tied table multiplies"


# --- Treemap ---


@pytest.mark.parametrize("sizes", [[5], [1, 9, 4, 4], [1000, 1e-3, 30, 30, 1], list(range(1, 40))])
def test_squarify_fills_the_rectangle_with_the_right_areas(sizes):
    places = plots.squarify(sizes, 3, 7, 80, 50)
    areas = np.array([w * h for _, _, w, h in places])
    assert np.allclose(areas, np.array(sizes) * 80 * 50 / sum(sizes))
    for i, (x, y, w, h) in enumerate(places):
        assert x >= 3 - 1e-6 and y >= 7 - 1e-6 and x + w <= 83 + 1e-6 and y + h <= 57 + 1e-6
        for x2, y2, w2, h2 in places[:i]:
            wide, high = min(x + w, x2 + w2) - max(x, x2), min(y + h, y2 + h2) - max(y, y2)
            assert wide < 1e-6 or high < 1e-6, "two rectangles overlap"


def test_squarify_makes_equal_areas_almost_square():
    assert max(max(w / h, h / w) for *_, w, h in plots.squarify([1] * 12, 0, 0, 40, 30)) == pytest.approx(1)


@pytest.mark.parametrize("n", [1, 2, 7, 12, 30, 32])
def test_grid_has_n_equal_tiles_inside(n):
    tiles = grid(n, 5, 10, 400, 300)
    assert len(set(tiles)) == n and len({(round(w, 6), round(h, 6)) for *_, w, h in tiles}) == 1
    assert sum(w * h for *_, w, h in tiles) > 0.8 * 400 * 300
    assert all(x >= 5 and y >= 10 and x + w <= 405 and y + h <= 310 for x, y, w, h in tiles)


@ALL
def test_weight_map_areas_are_the_shares(name):
    shown = weight_map(name)
    leaves, total = parameter_leaves(PRESETS[name]), count_parameters(PRESETS[name]).total
    hovers = re.findall(r"<title>(.*?)</title>", shown.picture.value)
    assert sorted(numbers(hover)[-1] for hover in hovers) == sorted(leaf[-1] for leaf in leaves)
    assert f"{total:,} parameters" in shown.summary
    shares = {
        numbers(h)[-1] / total: w * k for h, (_, _, w, k) in zip(hovers, rectangles(shown.picture.value), strict=True)
    }
    largest = max(shares)
    assert shares[largest] / (792 * 524) == pytest.approx(largest, rel=0.12)  # but for the gaps between tiles


def test_weight_map_names_tensors_only_where_all_of_a_part_have_room():
    large, small = (
        re.findall(r"<text[^>]*>([^<]+)</text>", weight_map(name).picture.value) for name in ("llama2-7b", "toy")
    )
    assert large.count("MLP") == large.count("attention") == 32 and "w_1" not in large
    assert small.count("w_1") == small.count("w_3") == 2 and "MLP" not in small


def test_weight_map_switches_to_flops():
    shown = weight_map("llama2-7b")
    shown.controls["area"].value = "FLOPs of the last token"
    assert numbers(shown.summary)[2:4] == [15_361_638_400, 4096] and "embedding 1" not in shown.summary.split("un")[0]


# --- The config explorer ---


def test_every_field_of_the_config_has_a_control():
    controls = compare_configs().controls
    assert set(FIELDS) == set(TransformerConfig.__dataclass_fields__) and set(FIELDS) <= set(controls)
    assert all(set(controls[name].options) == set(options) for name, options in CHOICES.items())


@ALL
def test_a_preset_sets_all_fields_with_one_drawing(name):
    shown, drawn = compare_configs("toy", "toy" if name != "toy" else "llama2-7b"), []
    shown.picture.observe(lambda change: drawn.append(1), "value")
    shown.controls["b"].value = name
    assert shown.fields() == fields_of(PRESETS[name]) and len(drawn) == 1
    total, flops = count_parameters(PRESETS[name]).total, flops_per_token(PRESETS[name], 1024).total
    said = shown.summary.split(" B ")[1]
    assert f"{name}: {total:,} parameters" in said
    assert gb(training_memory(PRESETS[name], 1024).total) in said
    assert flops > 0 and re.search(r"[\d.]+ [kMGT]FLOPs for token 1,024", said)


def test_a_changed_field_changes_b_alone_and_its_preset_is_let_go():
    shown = compare_configs("llama2-7b", "llama2-7b")
    a, b = shown.summary.split(" B ")
    shown.controls["n_layers"].value = 64
    assert shown.controls["b"].value is None and shown.summary.startswith(a)
    assert f"{count_parameters(PRESETS['llama2-7b'].replace(n_layers=64)).total:,}" in shown.summary
    shown.controls["n_layers"].value = 32
    assert shown.controls["b"].value == "llama2-7b" and shown.summary.endswith(b)


def test_b_can_be_kept_as_a():
    shown = compare_configs("toy", "llama2-7b")
    shown.controls["tie_embeddings"].value = True
    shown.controls["a"].value = KEPT
    tied = count_parameters(PRESETS["llama2-7b"].replace(tie_embeddings=True)).total
    shown.controls["b"].value = "gpt2-small"
    assert numbers(shown.summary)[0] == tied and "124,439,808" in shown.summary


def test_a_config_that_cannot_be_is_said_and_goes_away():
    shown = compare_configs("toy", "llama2-7b")
    before = shown.picture.value
    shown.controls["n_heads"].value = 9
    assert shown.error.value == "" and "d_model=4096 cannot be split into n_heads=9" in shown.summary
    assert "cannot be split" in shown.picture.value
    shown.controls["n_heads"].value = 32
    assert shown.picture.value == before


@pytest.mark.parametrize("equal", [True, False])
def test_bars_are_as_long_as_their_parts(equal):
    shown = compare_configs("llama2-7b", "paper-base")
    shown.controls["equal"].value = equal
    hovers = re.findall(r"<title>(.*?)</title>", shown.picture.value)
    wide = {h: place[2] for h, place in zip(hovers, rectangles(shown.picture.value), strict=True)}
    mine = {h: w for h, w in wide.items() if h.startswith("B  paper-base") and "FLOPs" not in h and "B (" not in h}
    total = count_parameters(PRESETS["paper-base"]).total
    whole = config_explorer.WIDE * (1 if equal else total / count_parameters(PRESETS["llama2-7b"]).total)
    table = next(w for h, w in mine.items() if "embedding 18,944,000" in h)
    assert table == pytest.approx(whole * 18_944_000 / total, rel=1e-3)


def test_a_sequence_too_long_for_a_model_is_said():
    shown = compare_configs("llama2-7b", "gpt2-small")
    assert "too long" not in shown.picture.value
    shown.controls["tokens"].value = 4096
    assert "too long for B" in shown.picture.value
    shown.controls["tokens"].value = 32_768
    assert "too long for A and B" in shown.picture.value


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1, "as large as"), (1.0001, "1.000100 ×"), (0.01847, "0.0185 ×"), (321.4, "321 ×"), (3e-5, "3.0e-05 ×")],
)
def test_ratios_in_words(ratio, words):
    assert times(ratio) == words


# --- The sentence's cost ---


@pytest.mark.parametrize("text", ["Once there was a fox", "x", "", "y" * 900, "<b>&\x07\n🙂 שלום"])
def test_sentence_cost_is_what_torch_counts(model, text):
    shown = sentence_cost(model, Letters(), "a fox")
    shown.controls["sentence"].value = text
    assert shown.error.value == ""
    n, pairs, seen, total, hidden, counted = numbers(shown.summary)[:6]
    flops = flops_per_sequence(model.cfg, n)
    assert (pairs, seen, total, hidden) == (n * n, n * (n + 1) // 2, flops.total, flops.masked)
    assert counted == total + hidden and "✓ equal" in shown.picture.value
    shown.controls["path"].value = "fused"
    assert numbers(shown.summary)[5] == flops.weights and "are missing" in shown.picture.value
    assert n <= 40 and (("only the first" in shown.summary) == (len(text) > 40))


def test_every_control_of_the_sentence_moves_picture_and_summary(model):
    shown = sentence_cost(model, Letters(), "a fox")
    for name, value in {"sentence": "a hen and a fox", "times": 3, "path": "fused"}.items():
        before, picture, summary = shown.controls[name].value, shown.picture.value, shown.summary
        shown.controls[name].value = value
        assert shown.picture.value != picture and shown.summary != summary, name
        shown.controls[name].value = before
        assert (shown.picture.value, shown.summary) == (picture, summary), name


# --- Figures ---


def test_every_number_of_the_small_model_is_one_square():
    cfg = TransformerConfig(vocab_size=11, d_model=6, n_layers=2, n_heads=3, d_ff=9, max_seq_len=7)
    ax = plots.to_scale(cfg).axes[0]
    assert sum(p.get_width() * p.get_height() for p in ax.patches) == pytest.approx(count_parameters(cfg).total)


def test_shares_are_the_parts_of_a_hundred():
    ax = plots.shares(
        {"a": {"x": 1, "y": 3}, "b": {"x": 5, "y": 0}}, {"a": "4", "b": "5"}, {"x": "#000000", "y": "#FFFFFF"}, "%"
    ).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [25, 75, 100, 0]
    assert [t.get_text() for t in ax.texts] == ["25%", "75%", "4", "100%", "5"]


def test_the_lines_cross_where_the_closed_forms_are_equal():
    for cfg in (PRESETS["llama2-7b"], PRESETS["toy"]):
        place, weights = plots.meeting(cfg)
        assert flops_per_token(cfg, round(place)).attention == pytest.approx(1e9 * weights, rel=2e-3)
    fig = plots.crossing(PRESETS["llama2-7b"], {"toy": PRESETS["toy"], "l": PRESETS["llama2-7b"]}, 30_000)
    (line,) = [line for line in fig.axes[0].lines if list(line.get_xdata()) == [0, 30_000]]
    assert line.get_ydata()[1] * 1e9 == pytest.approx(flops_per_token(PRESETS["llama2-7b"], 30_000).attention)


def test_growth_and_gap_show_their_numbers():
    fig = plots.growth([1024, 2048, 3072, 4096], [1e12, 2e12, 3e12, 4e12], [1e12, 4e12, 9e12, 16e12])
    slopes = [np.polyfit(np.log(line.get_xdata()), np.log(line.get_ydata()), 1)[0] for line in fig.axes[1].lines]
    assert slopes == pytest.approx([1, 2])
    band = plots.gap({"a": 63_000_000, "b": 65_400_000}, printed=65)
    assert [line.get_xdata()[0] for line in band.axes[0].lines[:2]] == [63, 65.4]
    for drawn in (fig, band):
        assert pixels(drawn).std() > 0


# --- Exercises ---


def test_the_learners_formulas_count_real_models():
    gpt2, llama = PRESETS["gpt2-small"], PRESETS["llama2-7b"]
    answers = {
        name: registry()[name].reference
        for name in ("gpt2_total", "token_flops", "sequence_attention", "training_bytes")
    }
    assert answers["gpt2_total"](50_257, 1024, 768, 12) == count_parameters(gpt2).total
    flops, multiplying = flops_per_token(llama, 999), count_parameters(llama).multiplying
    assert answers["token_flops"](multiplying, 32, 4096, 999) == flops.total
    assert answers["sequence_attention"](32, 4096, 777) == flops_per_sequence(llama, 777).attention
    memory, total = training_memory(llama, 256), count_parameters(llama).total
    assert answers["training_bytes"](total, memory.activations // 4, 4) == memory.total
    assert math.isclose(memory.total, 4 * (4 * total) + memory.activations)
