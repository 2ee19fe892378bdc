"""Notebook 10: the stepper tells what a cached pass does, the calculator adds up, each bug fails the right checks."""

import re

import numpy as np
import pytest
import torch
from small import build, random_ids, small
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib import PRESETS, KVCache, record
from transformer_lib.accounting import flops_per_sequence, kv_cache_bytes, weight_bytes
from transformer_lib.explorers.kv_bugs import CHECKS, break_cache, run_checks
from transformer_lib.explorers.kv_cache import LONGEST, NEW, cache_stepper, flops, generation_trace
from transformer_lib.explorers.kv_memory import MODELS, memory_calculator
from transformer_lib.generation import generate
from transformer_lib.lessons import bugs
from transformer_lib.plots import kv_cache as plots
from transformer_lib.plots.style import pixels

TEXT = "a fox, $x$"


class Letters:
    """A tokenizer for tests: one token per character, 29 ids, a control character and an empty text among them."""

    def encode(self, text):
        return [ord(letter) % 29 for letter in text]

    def pieces(self, text):
        return list(text)

    def decode(self, ids):
        return "".join("\x07" if i == 0 else "" if i == 1 else chr(96 + i) for i in ids)


@pytest.fixture(scope="module")
def model():
    return build(small(max_seq_len=31))


@pytest.fixture
def stepper(model):
    return cache_stepper(model, Letters(), TEXT)


@pytest.mark.parametrize("chunk", [1, 4, 10])
def test_trace_is_greedy_generation_in_chunks(model, chunk):
    prompt = Letters().encode(TEXT)
    trace = generation_trace(model, prompt, chunk)
    expected = generate(model, torch.tensor([prompt]), max_new_tokens=NEW + 1)[0].tolist()
    assert [*trace.ids, trace.passes[-1].best] == expected
    assert [p.start for p in trace.passes[1:]] == [p.stop for p in trace.passes[:-1]]
    assert len(trace.passes) == -(-len(prompt) // chunk) + NEW
    assert max(p.off for p in trace.passes) < 1e-3 and float(trace.off.max()) < 1e-4
    assert trace.off.shape == (model.cfg.n_layers, len(trace.ids))


def test_a_wrong_cache_shows_in_the_differences(model):
    with bugs.missing_rope_offset():
        trace = generation_trace(model, Letters().encode(TEXT), 4)
    assert trace.passes[0].off < 1e-3 < 1e-1 < max(p.off for p in trace.passes[1:])
    assert float(trace.off[0, 4:].max()) > 1e-2  # the keys of the second chunk


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (5, 6), (3, 9)])
def test_flops_are_those_that_torch_counts(model, start, stop):
    ids, cache = random_ids(1, stop), KVCache(model.cfg, 1, stop)
    with torch.no_grad():
        if start:
            model(ids[:, :start], cache=cache)
        with record(model), FlopCounterMode(display=False) as counter:
            model(ids[:, start:], cache=cache)
    new = stop - start
    hidden = 4 * (new * (new - 1) // 2) * model.cfg.n_heads * model.cfg.d_k * model.cfg.n_layers
    assert counter.get_total_flops() == flops(model.cfg, start, stop) + hidden
    assert flops(model.cfg, 0, stop) == flops_per_sequence(model.cfg, stop).total


def test_stepper_counts_cells_of_each_kind(stepper):
    """The picture of decode pass 3: one row and one key and value per layer are new, the earlier ones are read."""
    stepper.controls["step"].value = 3
    n, layers = len(TEXT) + 3, 2
    hovers = re.findall(r"<title>(.*?)</title>", stepper.picture.value)
    scores = [h for h in hovers if h.startswith("query")]
    kept = [h for h in hovers if h.startswith("layer")]
    assert (len(scores), len(kept)) == (n * (n + 1) // 2, 2 * layers * n)
    assert sum("computed in this pass" in h for h in scores) == n
    assert sum("read from the cache" in h for h in kept) == 2 * layers * (n - 1)
    assert f"Pass 3 of {NEW}, decode: 1 computed, {n - 1} from the cache" in stepper.summary
    stepper.controls["cached"].value = False
    hovers = re.findall(r"<title>(.*?)</title>", stepper.picture.value)
    assert sum("again in this one" in h for h in hovers) == n * (n - 1) // 2 + 2 * layers * (n - 1)


def test_the_slider_ends_at_the_last_pass(stepper):
    assert stepper.controls["step"].max == NEW
    stepper.controls["chunk"].value = 1
    assert stepper.controls["step"].max == len(TEXT) + NEW - 1
    stepper.controls["step"].value = len(TEXT) + NEW - 1
    stepper.controls["chunk"].value = LONGEST
    assert stepper.error.value == "" and stepper.controls["step"].value == NEW


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(model, stepper, text):
    breaker = break_cache(model, Letters(), TEXT, {"A": bugs.top_left_mask})
    for shown, longest in ((stepper, LONGEST), (breaker, 16)):
        shown.controls["sentence"].value = text
        assert shown.error.value == ""
        assert shown._pixels().shape[1] == 1600
        assert ("only the first" in shown.summary) == (len(text) > longest)


def test_every_control_moves_picture_and_summary(model, stepper):
    breaker = break_cache(model, Letters(), TEXT, {"A": bugs.top_left_mask, "B": bugs.missing_rope_offset})
    for shown in (stepper, memory_calculator(), breaker):
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            options = [value for value in getattr(control, "_options_values", ()) if value != before]
            typed = {"sentence": "a kite", "cached": False, "chunk": 3, "step": 5, "bandwidth": 20.0}
            control.value = options[0] if options else typed[name]
            assert shown.error.value == "" and shown.picture.value != picture, name
            assert shown.summary != summary, name
            control.value = before
            assert shown.summary == summary, name


def test_calculator_adds_up_as_accounting_does():
    shown = memory_calculator("llama2-7b")
    assert "weights 12.55 GiB, caches 12 GiB, does not fit in 24 GiB; at most 5 such sequences" in shown.summary
    shown.controls["kv_heads"].value = 8
    cfg, room = PRESETS["llama2-7b"].replace(n_kv_heads=8), 24 * 2**30
    fitting = (room - weight_bytes(cfg)) // kv_cache_bytes(cfg, 4096)
    assert f"fits in 24 GiB; at most {fitting} such sequences" in shown.summary
    shown.controls["batch"].value = 1
    shown.controls["context"].value = 128
    rate = 1e12 / (2 * (weight_bytes(cfg) // 2 - 65 * 4096 - 32_000 * 4096) + kv_cache_bytes(cfg, 128))
    assert f"at most {rate:,.0f} tokens per second" in shown.summary


def test_each_model_brings_its_own_heads_and_context():
    shown = memory_calculator()
    for name, cfg in MODELS.items():
        shown.controls["model"].value = name
        assert shown.error.value == ""
        assert (shown.controls["kv_heads"].value, shown.controls["context"].value) == (cfg.kv_heads, cfg.max_seq_len)
        assert all(cfg.n_heads % n == 0 for _, n in shown.controls["kv_heads"].options)


def test_bugs_fail_the_checks_that_continue_from_a_cache(model):
    ids = random_ids(1, 9)

    def failed(*bug):
        return {name for name, passes in run_checks(model, ids, *bug).items() if not passes}

    assert failed() == set() and len(CHECKS) == 8
    assert failed(bugs.top_left_mask) == {"new token sees every key", "one by one = one pass"}
    assert failed(bugs.missing_rope_offset) == {"stored keys = recomputed", "one by one = one pass"}


@pytest.mark.parametrize("bug", [bugs.top_left_mask, bugs.missing_rope_offset])
def test_bugs_leave_uncached_passes_alone_and_end(model, bug):
    ids = random_ids(2, 7)
    with torch.no_grad():
        before = model(ids)
        with bug(model):
            assert torch.equal(model(ids), before)
        cache = model.new_cache(2, 7)
        model(ids[:, :3], cache=cache)
        torch.testing.assert_close(model(ids[:, 3:], cache=cache), before[:, 3:], rtol=1e-4, atol=1e-3)


def test_top_left_mask_keeps_to_padding_and_alibi():
    ids = random_ids(2, 7)
    keep = torch.tensor([[False, True, True, True, True, True, True], [True] * 7])
    for cfg, arguments in ((small(), {"padding_mask": keep}), (small(positions="alibi"), {})):
        model = build(cfg)
        cache = model.new_cache(2, 7)
        with torch.no_grad(), bugs.top_left_mask(), record(model) as seen:
            for part in (slice(0, 4), slice(4, 7)):
                model(ids[:, part], cache=cache, **{name: mask[:, part] for name, mask in arguments.items()})
        weights = seen["blocks.0.attention.weights"]  # (B, H, 3, 7)
        assert weights[..., 3:].abs().max() == 0 and weights.isfinite().all()


def test_roofline_marks_lie_on_the_roof():
    fig = plots.roofline(1e10, 1e11, {1: (0.5, 4e9), 64: (30, 8e10)}, {"decode": 1.0, "prefill": 4000.0})
    marks = [line.get_xydata()[0] for line in fig.axes[0].lines if line.get_marker() == "D"]
    assert np.allclose(marks, [(1.0, 10.0), (4000.0, 100.0)])


def test_passes_draws_each_token_once_with_the_cache():
    axes = plots.passes(5, 6, [1, 2], [1, 2], [1, 3]).axes
    assert [len(ax.patches) for ax in axes[:2]] == [sum(range(5, 12)), 11]


def test_other_pictures_draw():
    changes = {"a": np.zeros((2, 3)), "b": np.full((2, 3), 0.02)}
    keep = np.array([[False, True, True], [True, True, True]])
    figures = [
        plots.changed_keys(changes, ["$x", "b", "c"]),
        plots.times([32, 64], [1, 1.1], [3, 6]),
        plots.bytes_of_a_step([1, 2, 64], 10**9, 10**8, {"short": [3, 2, 1], "long": [4, 3, 2]}),
        plots.sharing(4, {"MHA": 4, "GQA": 2, "MQA": 1, "MLA": 0}, {"MHA": 64, "GQA": 32, "MQA": 16, "MLA": 20}),
        plots.quality({"MHA": [(1, 3.0), (2, 2.0)]}, [("MHA", 64, 2.0, 1.9, 2.2), ("MQA", 16, 2.1, 2.1, 2.1)]),
        plots.left_padding(keep, [["", "$", "b"], ["c", "d", "e"]], np.array([[0, 0, 1], [0, 1, 2]])),
    ]
    for fig in figures:
        assert pixels(fig).std() > 0
