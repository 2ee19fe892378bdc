"""Notebook 11: each explorer tells what the models do, and the pictures draw with and without stored results."""

import re

import numpy as np
import pytest
import torch
from small_relatives import MASKED, build, build_causal

from transformer_lib import PRESETS
from transformer_lib.accounting import gib, kv_cache_bytes
from transformer_lib.config import TransformerConfig
from transformer_lib.experiments import ladder
from transformer_lib.explorers.charts import Chart
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.explorers.routing import LONGEST, routing_map
from transformer_lib.explorers.state_memory import caches, measured, state_or_cache
from transformer_lib.explorers.switches import SWITCHES, four_switches
from transformer_lib.explorers.unmasking import judge, unmasking_film, unmasking_player
from transformer_lib.plots import since_2017 as plots
from transformer_lib.plots.style import pixels
from transformer_lib.relatives.diffusion import unmask
from transformer_lib.relatives.masked_encoder import MaskedTransformer
from transformer_lib.translation import TARGET_WORDS

CONFIGS = {rung: ladder.model_of(rung)[1] for rung in ladder.VARIANTS}
RUNS = {
    rung: [{"curve": [(10, 5.0 + k), (20, 4.0)], "loss": 3.0 + 0.1 * k + 0.01 * seed} for seed in range(3)]
    for k, rung in enumerate(ladder.VARIANTS)
}
WRITER = TransformerConfig(
    vocab_size=len(TARGET_WORDS) + 1, d_model=24, n_layers=2, n_heads=3, max_seq_len=7, causal=False,
    positions="learned",
)  # fmt: skip
AWKWARD = ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $", "sa mira $ _ _"]


class Letters:
    """A tokenizer for tests: one token per character, 29 ids."""

    def encode(self, text):
        return [ord(letter) % 29 for letter in text]

    def decode(self, ids):
        return "".join("\x07" if i == 0 else chr(96 + i) for i in ids)


def explorers():
    return {
        "switches": four_switches(CONFIGS, RUNS),
        "routing": routing_map(build_causal("moe", max_seq_len=31), Letters(), "a fox"),
        "memory": state_or_cache(),
        "player": unmasking_player(build(MaskedTransformer, WRITER), TARGET_WORDS, 7),
    }


@pytest.mark.parametrize("name", ["switches", "routing", "memory", "player"])
def test_every_control_moves_picture_and_summary(name):
    shown = explorers()[name]
    for key, control in shown.controls.items():
        before, picture, summary = control.value, shown.picture.value, shown.summary
        options = [value for value in getattr(control, "_options_values", ()) if value != before]
        typed = {"sentence": "a kite", "given": "sa _ pita", "step": 3, "steps": 2, "temperature": 1.4, "seed": 5}
        control.value = options[-1] if options else typed[key]
        assert shown.error.value == "" and shown.picture.value != picture, key
        assert shown.summary != summary or key == "show", key
        control.value = before
        assert shown.summary == summary, key


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize(("name", "control"), [("routing", "sentence"), ("player", "given")])
def test_awkward_text_survives(name, control, text):
    shown = explorers()[name]
    shown.controls[control].value = text
    assert shown.error.value == ""
    assert shown._pixels().shape[1] == 1600


def test_the_switches_are_those_of_the_experiment():
    assert tuple(SWITCHES) == tuple(ladder.SWITCHES)


def test_each_switch_exchanges_its_part_and_names_its_rung():
    shown = four_switches(CONFIGS, RUNS)
    assert "sinusoids" in shown.picture.value and "RoPE" not in shown.picture.value
    shown.controls["rope"].value = True
    assert "RoPE" in shown.picture.value and shown.summary.startswith("rope: ")
    assert "+0.10 to 2017" in shown.summary
    for switch in SWITCHES:
        shown.controls[switch].value = True
    assert "loss 3.51" in shown.summary and "all four" in shown.picture.value
    for words in ("SwiGLU", "RMSNorm", "final RMSNorm"):
        assert words in shown.picture.value
    assert "cross-attention" not in shown.picture.value


@pytest.mark.parametrize("runs", [{}, {"2017": RUNS["2017"]}, {"rope": RUNS["rope"][:1]}])
def test_switches_work_where_runs_are_missing(runs):
    shown = four_switches(CONFIGS, runs)
    for switch in SWITCHES:
        shown.controls[switch].value = True
        assert shown.error.value == ""
    assert "make experiments" in shown.picture.value and "not trained yet" in shown.summary


def test_routing_map_shows_the_layers_own_choices():
    model, text = build_causal("moe", max_seq_len=31), "a fox ran"
    shown = routing_map(model, Letters(), text)
    hovers = re.findall(r"<title>(.*?)</title>", shown.picture.value)
    used = [h for h in hovers if "used with the weight" in h]
    assert len(used) == model.cfg.n_layers * model.cfg.n_active * len(text)
    weights = [float(h.rsplit(" ", 1)[1]) for h in used]
    assert abs(sum(weights) - model.cfg.n_layers * len(text)) < 0.02 * len(used)
    shown.controls["sentence"].value = "x" * 90
    assert f"only the first {LONGEST} of 90 tokens" in shown.summary


def test_caches_have_the_bytes_of_their_formulas():
    cfg = PRESETS["llama2-7b"]
    kinds = caches(cfg, kv_heads=8, d_state=16)
    assert measured(*kinds["multi-head"], 4096) == kv_cache_bytes(cfg, 4096) == 2 * 2**30
    assert measured(*kinds["grouped"], 4096) == kv_cache_bytes(cfg.replace(n_kv_heads=8), 4096)
    assert measured(*kinds["latent"], 4096) == 4096 * 32 * (512 + 64) * 2  # DeepSeek-V2's latent and rotary key
    states = [measured(*kinds["state"], tokens) for tokens in (1, 4096, 2**20)]
    assert states == [32 * 8192 * (16 + 3) * 2] * 3
    assert gib(states[0]) in state_or_cache().summary


def test_the_film_is_what_unmask_writes():
    model = build(MaskedTransformer, MASKED.replace(positions="learned"))
    start = torch.full((9,), model.mask_id)
    start[4] = 3
    for steps in (1, 4, 9):
        film = unmasking_film(model, start, steps, temperature=1.0, seed=2)
        assert torch.equal(film.ids[-1], unmask(model, start[None], steps=steps, temperature=1.0, seed=2)[0])
        assert film.ids.shape == film.guesses.shape == (steps + 1, 9) and bool((film.ids[:, 4] == 3).all())
        hidden = (film.ids == model.mask_id).sum(dim=1).tolist()
        assert hidden[0] == 8 and hidden[-1] == 0 and hidden == sorted(hidden, reverse=True)


def test_player_keeps_given_words_and_judges_the_sentence():
    shown = unmasking_player(build(MaskedTransformer, WRITER), TARGET_WORDS, 7)
    shown.controls["given"].value = "sa mira pita no balo rudo tolata"
    assert "“sa mira pita no balo rudo tolata”: right: the small cat sees a red ball" in shown.summary
    shown.controls["given"].value = "sa mira pito no balo rudo tolata"
    assert "wrong: 'pito' should be 'pita'" in shown.summary
    shown.controls["step"].value = 0
    assert "0 of 7 words hidden. The verdict comes" in shown.summary
    shown.controls["given"].value = "sa dragon"
    assert "'dragon' is no word of this language" in shown.summary and "6 of 7 words hidden" in shown.summary
    assert judge(["sa"])[1] is False


def test_charts_put_data_where_they_belong():
    drawing = Drawing(800, 300)
    plain = Chart(drawing, 100, 20, 400, 200, (0, 10), (0, 4))
    assert plain.place(5, 1) == (300, 170) and plain.place(-3, 9) == (100, 20)
    assert Chart(drawing, 100, 20, 400, 200, (1, 10_000), (1, 100), log=True).place(100, 10) == (300, 120)


def test_pictures_draw_with_and_without_stored_results():
    live = {"a": [3.0, 2.0, 1.0] * 20, "b": [3.0, 2.5] * 30}
    rungs = {rung: (3 - 0.1 * k, 2.9 - 0.1 * k, 3.1 - 0.1 * k, 3) for k, rung in enumerate(ladder.VARIANTS)}
    row = {"name": "a $x", "parameters": 900, "active": 400, "growing": 64, "fixed": 0, "loss": (1.0, 0.9, 1.2)}
    generators = {"a": np.eye(3), "b": -np.eye(4)}
    figures = [
        plots.ladder(live, rungs),
        plots.ladder(live, {}),
        plots.positions(generators, {"a": [[1, 2, 3]], "b": [[1, 0], [0, 1]]}),
        plots.load({"a": [[0.5, 0.5], [0.9, 0.1]]}),
        plots.load({"a": [[0.5, 0.5], [0.9, 0.1]], "b": [[0.4, 0.6]]}),
        plots.uncovering(range(1, 4), {"confidence": [0, 0.5, 1], "random": [0, 0.2, 0.6]}),
        plots.all_trained([row, row | {"growing": None, "fixed": None, "loss": None, "words": "none yet"}]),
    ]
    for fig in figures:
        assert pixels(fig).std() > 0
    assert len(figures[0].axes[1].get_yticks()) == 16
