"""The toy: trained once, found again, waited for; and good enough for the lessons, on any machine."""

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from small import small

from transformer_lib import checkpoint, corpus, generate, toy
from transformer_lib.head_scores import story_scores, tokens_of

LOSS_RATIO = 1.36  # of the loss on fresh stories to the stories' own entropy; 1.24 to 1.26 on three seeds: see toy.py
OTHERS = {"he": ["she"], "she": ["he"], "him": ["her"], "his": ["her"], "her": ["him", "his"]}


@pytest.fixture
def tiny_recipe(tmp_path, monkeypatch):
    """The toy's recipe, made so small that it trains in a second."""
    monkeypatch.setenv("TRANSFORMER_CHECKPOINTS", str(tmp_path))
    config = small(vocab_size=400, max_seq_len=500)
    changes = {"CONFIG": config, "TEXT_BYTES": 30_000, "VOCABULARY_BYTES": 30_000, "CONTEXT": 20, "N_EVALUATED": 5}
    changes["PROCESSES"] = 1  # others would not know of these changes
    training = toy.TrainConfig(steps=4, batch_size=2, threads=1)
    for name, value in (changes | {"TRAINING": training}).items():
        monkeypatch.setattr(toy, name, value)
    monkeypatch.setattr(toy.train_toy, "__defaults__", (config, training, 20))
    toy.recipe_digest.cache_clear()
    yield tmp_path
    toy.recipe_digest.cache_clear()


# --- Where it is ---


def test_it_is_trained_once_and_found_again(tiny_recipe, monkeypatch):
    model, tokenizer = toy.load_toy(progress=False)
    assert not model.training and tokenizer.vocab_size == 400 == model.cfg.vocab_size
    monkeypatch.setattr(toy, "train_toy", None)  # whoever trains it again fails
    again, _ = toy.load_toy(progress=False)
    assert torch.equal(again.embedding.weight, model.embedding.weight)
    assert toy.toy_history().step == 4 and len(toy.toy_history().evaluations) == 1
    assert not torch.equal(toy.untrained_toy().embedding.weight, model.embedding.weight)


def test_another_recipe_has_another_folder(tiny_recipe, monkeypatch):
    before = toy.toy_folder()
    monkeypatch.setattr(toy, "CONTEXT", 21)
    toy.recipe_digest.cache_clear()
    assert toy.toy_folder() != before and toy.toy_folder().parent == before.parent == tiny_recipe.resolve()


def test_it_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_CHECKPOINTS", raising=False)
    before = toy.toy_folder()
    monkeypatch.chdir(tmp_path)
    assert toy.toy_folder() == before and before.is_absolute()


def test_history_before_training_is_one_sentence(tiny_recipe):
    with pytest.raises(ValueError, match="not trained yet"):
        toy.toy_history()


def test_a_second_process_waits_for_the_first(tiny_recipe, monkeypatch, capsys):
    lock = f"""
import sys, time, filelock, pathlib
folder = pathlib.Path({str(toy.toy_folder())!r}); folder.mkdir(parents=True)
with filelock.FileLock(folder / "training.lock"):
    print("locked", flush=True); time.sleep(3)
"""
    process = subprocess.Popen([sys.executable, "-c", lock], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    toy.load_toy()
    assert process.wait(timeout=30) == 0
    assert "Another process is training the toy" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_does_not_stop_a_lesson(tiny_recipe, monkeypatch, capsys):
    (tiny_recipe / "file").write_text("in the way")
    monkeypatch.setenv("TRANSFORMER_CHECKPOINTS", str(tiny_recipe / "file"))
    model, _ = toy.load_toy()
    assert model.cfg == toy.CONFIG and "not be kept" in capsys.readouterr().err


@contextmanager
def a_team(code: str, *_):
    """A process in place of the launcher."""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        yield process


def test_where_a_team_fails_one_process_trains(tiny_recipe, monkeypatch, capsys):
    monkeypatch.setattr(toy, "team_size", lambda: 2)
    monkeypatch.setattr(toy, "launched", partial(a_team, "raise SystemExit(1)"))
    toy.load_toy()
    assert toy.toy_history().step == 4
    err = capsys.readouterr().err
    assert "Training the toy in 2 processes" in err and "on cpu with 1 thread" in err


@pytest.mark.parametrize(("saved", "says"), [(False, ""), (True, "Stopped after step 4 of 4; saved in ")])
def test_ctrl_c_says_what_a_team_has_reached(tiny_recipe, monkeypatch, saved, says):
    def press(_):
        raise KeyboardInterrupt

    if saved:
        toy.load_toy(progress=False)
    monkeypatch.setattr(toy, "is_trained", lambda folder: False)  # its four steps stand for the first of many
    monkeypatch.setattr(toy, "team_size", lambda: 2)
    monkeypatch.setattr(toy, "launched", partial(a_team, "pass"))
    monkeypatch.setattr(toy, "watch", lambda *_: press(_))
    with pytest.raises(KeyboardInterrupt) as stop:
        toy.train_together(toy.toy_folder(), progress=False)
    assert str(stop.value).startswith(says) and bool(str(stop.value)) == saved


def test_a_trained_toy_needs_no_team(tiny_recipe, monkeypatch):
    toy.load_toy(progress=False)
    monkeypatch.setattr(toy, "team_size", lambda: 2)
    monkeypatch.setattr(toy, "launched", None)  # whoever starts a team fails
    assert toy.train_together(toy.toy_folder(), progress=True)


def test_one_core_or_a_gpu_is_one_process(monkeypatch):
    monkeypatch.setattr(toy, "available_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert toy.team_size() == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert toy.team_size() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert toy.team_size() == 1
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(toy, "available_cores", lambda: 1)
    assert toy.team_size() == 1


def test_the_floor_is_the_information_over_the_tokens_that_are_predicted(tiny_recipe):
    tokenizer = toy.Tokenizer.train(corpus.story_text(30_000), 400)
    stories = corpus.fresh_stories(4)
    ids, mask = toy.encode_stories(tokenizer, stories)
    for row, keep, story in zip(ids, mask, stories, strict=True):
        assert tokenizer.decode(row[keep].tolist()) == f"{story.text}\n" and not keep[0]
    tokens = sum(len(tokenizer.encode(f"{story.text}\n")) for story in stories)
    assert toy.entropy_floor(tokenizer, stories) == pytest.approx(sum(s.information for s in stories) / tokens)


# --- How good it is ---


@pytest.fixture(scope="module")
def stories():
    return corpus.fresh_stories(200, seed=7)  # not those that its training was evaluated on


def test_its_loss_on_fresh_stories_is_near_their_entropy(trained, stories):
    model, tokenizer = trained
    floor, loss = toy.entropy_floor(tokenizer, stories), toy.story_loss(model, tokenizer, stories)
    assert 0.98 * floor < loss < LOSS_RATIO * floor, (loss, floor)
    assert toy.story_loss(toy.untrained_toy(), tokenizer, stories) > 6


@pytest.mark.parametrize(("job", "least"), [("name", 0.6), ("quote", 0.4), ("pronoun", 0.3)])
def test_heads_have_nameable_jobs(trained, stories, job, least):
    model, tokenizer = trained
    best = story_scores(model, tokenizer, stories[:60])[job]
    untrained = story_scores(toy.untrained_toy(), tokenizer, stories[:60])[job]
    assert best.best[0] > least and best.best[0] > 2 * max(untrained.best[0], best.chance), best


@torch.no_grad()
def test_it_knows_he_from_she(trained, stories):
    """Wherever a pronoun stands for one person, is it more probable than the one of the other gender?"""
    model, tokenizer = trained
    right = []
    for story in stories:
        text = f"\n{story.text}\n"
        ids, spans = torch.tensor([tokenizer.encode(text)]), tokenizer.spans(text)
        logits = model(ids)[0]  # (T, V)
        for mark in story.marks:
            word = story.text[mark.start : mark.end]
            if mark.kind == "pronoun" and word.lower() in OTHERS:
                (at,) = tokens_of(spans, (mark.start, mark.end))
                others = [other.title() if word.istitle() else other for other in OTHERS[word.lower()]]
                rivals = [tokenizer.encode(f" {other}")[-1] for other in others]
                right.append(bool((logits[at - 1, ids[0, at]] > logits[at - 1, rivals]).all()))
    assert len(right) > 500 and sum(right) / len(right) > 0.75  # 0.95 to 0.96 on three seeds; 0.5 by guessing


def test_its_stories_keep_the_heros_name(trained):
    model, tokenizer = trained
    start = torch.tensor([tokenizer.encode("\nOnce upon a time, there was a girl named Mia.")] * 40)
    end = tokenizer.encode("\n")
    out = generate(model, start, max_new_tokens=120, temperature=0.7, seed=0, stop_ids=end)
    told = [tokenizer.decode(row.tolist()).strip().split("\n")[0] for row in out]
    kept = [len(re.findall(r"\bMia\b", story)) >= 3 for story in told]  # 48 to 50 of 50 on three seeds
    assert sum(kept) >= 34, told


def test_the_module_is_quiet_where_the_toy_is_there(trained):
    start = time.monotonic()
    result = subprocess.run([sys.executable, "-m", "transformer_lib.toy"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), time.monotonic() - start


def test_it_is_stored_with_its_vocabulary(trained):
    about = checkpoint.read_about(toy.toy_folder())
    assert about["history"]["threads"] == 1 and about["vocabulary"] and about["versions"]["torch"]
