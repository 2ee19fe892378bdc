"""The trained comparisons: equal sizes, runs that are kept, and an interruption that loses nothing."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from transformer_lib.experiments import cache_sharing, ladder, relatives_trained, results, runner, stories, warmup
from transformer_lib.model import EncoderDecoder, Transformer
from transformer_lib.relatives.counting import count
from transformer_lib.relatives.mla import mla_bytes_per_token


def meta(kind, cfg):
    with torch.device("meta"):
        return kind(cfg)


@pytest.mark.parametrize("variant", ladder.VARIANTS)
def test_every_rung_of_the_ladder_has_nearly_the_same_size(variant):
    kind, cfg = ladder.model_of(variant)
    reference = count(meta(Transformer, stories.LLAMA)).parameters
    assert abs(count(meta(kind, cfg)).parameters / reference - 1) < 0.005


def test_the_ladder_goes_from_2017_to_llama_in_all_combinations():
    assert len(set(ladder.VARIANTS)) == 16 and ladder.VARIANTS[0] == "2017"
    kind, first = ladder.model_of("2017")
    assert kind is EncoderDecoder and (first.positions, first.norm_position, first.activation) == (
        "sinusoidal",
        "post",
        "relu",
    )
    kind, last = ladder.model_of(" + ".join(ladder.SWITCHES))
    assert kind is Transformer and last == stories.LLAMA.replace(d_ff=last.d_ff)
    assert abs(last.d_ff - stories.LLAMA.d_ff) <= 1


@pytest.mark.parametrize("variant", [*cache_sharing.VARIANTS, *relatives_trained.VARIANTS])
def test_what_is_compared_has_nearly_the_same_active_size(variant):
    module = cache_sharing if variant in cache_sharing.VARIANTS else relatives_trained
    kind, cfg = module.model_of(variant)
    reference = count(meta(Transformer, stories.LLAMA)).parameters
    assert abs(count(meta(kind, cfg)).active_parameters / reference - 1) < 0.005


def test_cached_bytes_are_read_from_the_cache_and_equal_the_formula():
    for variant, kv_heads in cache_sharing.KV_HEADS.items():
        kind, cfg = cache_sharing.model_of(variant)
        assert count(kind(cfg)).growing == 2 * cfg.n_layers * kv_heads * cfg.d_k * 4
    kind, cfg = cache_sharing.model_of("MLA")
    assert count(kind(cfg)).growing == mla_bytes_per_token(cfg, bytes_per_number=4)


def test_an_encoder_decoder_is_asked_for_the_same_tokens_as_a_decoder():
    kind, cfg = ladder.model_of("2017")
    model = kind(cfg).eval()
    ids = torch.randint(0, cfg.vocab_size, (3, stories.CONTEXT + 1))
    logits = ladder.HalfAndHalf(model)(ids[:, :-1])
    losses = torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
    assert_close(ladder.second_half_loss(model, ids), losses[:, ladder.SPLIT :].mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("switch", ladder.SWITCHES)
def test_pairs_differ_in_one_switch(switch):
    found = ladder.pairs(switch)
    assert {rung for pair in found for rung in pair} == set(ladder.VARIANTS) and len(found) == 8
    for without, with_it in found:
        assert set(with_it.split(" + ")) - set(without.split(" + ")) == {switch}


def test_the_curve_covers_every_step_once():
    history = SimpleNamespace(losses=[float(i) for i in range(101)], step=101)
    pieces = stories.curve(history, points=40)
    assert len(pieces) <= 40 and pieces[-1][0] == 101 and pieces[0] == (3, 1.0)


def fake(monkeypatch, made: list, **changes):
    """An experiment that takes no time, in this process."""
    module = SimpleNamespace(
        TITLE="", VARIANTS=("a", "b"), SECONDS=1, recipe=lambda variant, steps: f"{variant} {steps}"
    )
    module.run = lambda variant, seed, steps: made.append((variant, seed)) or {"loss": seed + (variant == "b") / 2}
    vars(module).update(changes)
    monkeypatch.setattr(runner, "experiment_named", lambda name: module)

    class Here:
        def __init__(self, *args, **kwargs): ...
        def __enter__(self):
            return self

        def __exit__(self, *error): ...
        def shutdown(self, **how): ...
        def submit(self, function, *args):
            from concurrent.futures import Future

            future = Future()
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            return future

    monkeypatch.setattr(runner, "ProcessPoolExecutor", Here)


def test_only_what_is_missing_or_has_another_recipe_is_run(monkeypatch, tmp_path):
    made, path = [], tmp_path / "figures" / "experiments.json"
    fake(monkeypatch, made)
    assert runner.run_all(["x"], seeds=2, path=path) == 4
    assert runner.run_all(["x"], seeds=2, path=path) == 0 and len(made) == 4
    assert runner.run_all(["x"], seeds=3, path=path) == 2
    assert runner.run_all(["x"], seeds=3, steps=5, path=path) == 6  # another recipe
    assert results.load(path)["x"]["b"]["2"]["loss"] == 2.5


def test_a_run_that_fails_keeps_those_before_it(monkeypatch, tmp_path):
    def run(variant, seed, steps):
        if (variant, seed) == ("a", 1):
            raise FloatingPointError("the loss is nan")
        return {"loss": 1.0}

    path = tmp_path / "experiments.json"
    fake(monkeypatch, [], run=run)
    with pytest.raises(FloatingPointError):
        runner.run_all(["x"], seeds=2, path=path)
    assert "a" in results.load(path)["x"] and list(tmp_path.iterdir()) == [path]


def test_spread_and_table(monkeypatch, tmp_path):
    path = tmp_path / "experiments.json"
    fake(monkeypatch, [])
    runner.run_all(["x"], seeds=3, path=path)
    assert results.spread("x", "b", "loss", path) == (1.5, 0.5, 2.5, 3)
    assert str(results.spread("x", "b", "loss", path)) == "1.500 (0.500–2.500)"
    assert [row["variant"] for row in results.table("x", path)] == ["a", "b"]
    with pytest.raises(KeyError, match="make experiments"):
        results.spread("x", "c", "loss", path)


def test_a_damaged_file_is_named_and_not_overwritten(tmp_path):
    path = tmp_path / "experiments.json"
    path.write_text("{half")
    with pytest.raises(ValueError, match="no JSON"):
        results.store(path, "x", "a", 0, {})
    assert path.read_text() == "{half"


def test_an_unknown_experiment_is_answered_with_the_list():
    with pytest.raises(ValueError, match="ladder"):
        runner.experiment_named("ladders")


@pytest.mark.parametrize("name", runner.NAMES)
def test_every_experiment_has_what_the_runner_needs(name):
    module = runner.experiment_named(name)
    assert module.TITLE and len(set(module.VARIANTS)) == len(module.VARIANTS) and module.SECONDS > 0
    recipes = {module.recipe(variant, None) for variant in module.VARIANTS}
    assert len(recipes) >= len(module.VARIANTS) - (name == "relatives_trained")
    assert module.recipe(module.VARIANTS[0], 3) != module.recipe(module.VARIANTS[0], None)


def test_warm_up_is_what_tells_its_variants_apart():
    steps = [warmup.training(variant, None).warmup_steps for variant in warmup.VARIANTS]
    assert steps == [100, 0, 100, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("name", runner.NAMES)
def test_every_run_of_every_experiment_works_in_short(name, tmp_path):
    """Two steps each, so that the long run does not fail at its last measurement."""
    path = tmp_path / "experiments.json"
    assert runner.run_all([name], seeds=1, steps=2, path=path, workers=1) == len(runner.plan([name], 1))
    runs = results.load(path)[name]
    assert all(run["seconds"] > 0 and run["curve"] for variant in runs.values() for run in variant.values())
    assert len(results.table(name, path)) == len(runner.experiment_named(name).VARIANTS)


def test_windows_are_whole_and_begin_with_a_story(monkeypatch):
    """Also where the stories are short, and where the last ones are too short for a window."""
    ids = torch.arange(12 * 40).view(12, 40)
    counts = torch.arange(40) < torch.tensor([[39], [17]]).repeat(6, 1)  # (12, 40)
    monkeypatch.setattr(stories, "stories", lambda: SimpleNamespace(fresh=ids, counts=counts))
    rows = relatives_trained.windows()
    assert rows.shape == (5, relatives_trained.WINDOW + 1)
    assert rows[:, 0].tolist() == [ids[k, 0].item() for k in (1, 3, 5, 7, 9)]


def test_where_all_is_masked_only_a_position_table_tells_the_places_apart():
    """Why the models that see both sides have one: RoPE turns equal values towards equal sums."""
    kind, cfg = relatives_trained.model_of("masked diffusion")
    masks = torch.full((1, 7), cfg.vocab_size - 1)
    for positions, differ in (("rope", False), ("learned", True)):
        logits = stories.build(kind, cfg.replace(positions=positions), 0).eval()(masks)[0]
        assert bool((logits - logits[0]).abs().max() > 1e-3) == differ
