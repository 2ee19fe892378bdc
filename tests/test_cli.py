"""The commands: what a user gets, and one sentence without a traceback for whatever cannot be done."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from reference import needs_smollm2
from small import build, small

from transformer_lib import __main__, corpus, toy
from transformer_lib.checkpoint import read_about, save_model
from transformer_lib.cli.count import parse_change
from transformer_lib.pretrained import save_huggingface
from transformer_lib.tokenizer import Tokenizer

SMALL_RUN = ["--steps", "6", "--batch-size", "3", "--width", "16", "--heads", "2", "--layers", "1"]


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "transformer_lib", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, with a text of 1,100 characters in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text(corpus.pydoc_text()[:1100])
    return tmp_path


def fails(capsys, *arguments: str, status: int = 1) -> str:
    """The one sentence that the command writes to stderr."""
    assert __main__.main(list(arguments)) == status
    sentence = capsys.readouterr().err.strip().splitlines()[-1]
    assert "Traceback" not in sentence and sentence.endswith(".")
    return sentence


# --- train and generate ---


def test_a_text_is_trained_on_resumed_and_continued(here, capsys):
    assert __main__.main(["train", "--text", "mine.txt", *SMALL_RUN]) == 0
    first = capsys.readouterr().out
    assert re.search(r"not trained on: \d\.\d{3} nats per token", first) and "--run" in first
    before = (here / "runs/mine/checkpoint.safetensors").read_bytes()
    assert __main__.main(["train", "--text", "mine.txt", *SMALL_RUN]) == 0
    assert capsys.readouterr().out == first, "a finished run is loaded, not trained again"
    assert (here / "runs/mine/checkpoint.safetensors").read_bytes() == before
    texts = []
    for _ in range(2):
        request = ["generate", "--run", "runs/mine", "Python is", "--max-new-tokens", "20", "--seed", "1"]
        assert __main__.main(request) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("Python is") and len(texts[0]) > 20


def test_other_options_in_the_same_folder_are_refused(here, capsys):
    assert __main__.main(["train", "--text", "mine.txt", *SMALL_RUN]) == 0
    sentence = fails(capsys, "train", "--text", "mine.txt", *SMALL_RUN, "--seed", "5")
    assert "seed is 0 there and 5 here" in sentence


def test_ctrl_c_says_how_to_go_on_and_the_losses_are_those_of_an_uninterrupted_run(here):
    run = ["train", "--text", "mine.txt", *SMALL_RUN[2:], "--steps", "300", "--threads", "1"]
    line = [sys.executable, "-m", "transformer_lib", *run, "--out", "stopped"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "Training" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Run the same again to go on" in errors and "Traceback" not in errors
    for folder in ("stopped", "whole"):
        assert __main__.main([*run, "--out", folder]) == 0
    stopped, whole = (read_about(folder)["history"]["losses"] for folder in ("stopped", "whole"))
    assert stopped == whole and len(whole) == 300


def test_a_small_relative_of_the_toy_is_trained_on_stories(here, capsys, monkeypatch):
    monkeypatch.setattr(toy, "TEXT_BYTES", 50_000)
    monkeypatch.setattr(toy, "N_EVALUATED", 10)
    assert __main__.main(["train", *SMALL_RUN, "--vocabulary", "400", "--context", "40"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"fresh stories: \d\.\d+ .* no model can stay: \d\.\d+", out)
    assert (here / "runs/stories/checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "0 characters"),
        ("tiny.txt", b"hello", "5 characters and 1,000 are needed"),
        ("binary.txt", bytes(range(256)) * 20, "not UTF-8"),
        ("nul.txt", b"a\0b" * 900, "binary"),
        ("missing.txt", None, "cannot be read"),
    ],
)
def test_a_text_that_is_none(here, capsys, name, content, message):
    if content is not None:
        (here / name).write_bytes(content)
    assert message in fails(capsys, "train", "--text", name)
    assert not (here / "runs").exists()


@pytest.mark.parametrize("text", ["ab " * 340, "字" * 1200, "\n".join("x" * 9 for _ in range(110)), "🐈 " * 600])
def test_any_text_that_is_long_enough_is_learnt(here, text):
    (here / "odd.txt").write_text(text, encoding="utf-8")
    assert __main__.main(["train", "--text", "odd.txt", *SMALL_RUN]) == 0


def test_a_context_longer_than_the_text_is_refused_or_shortened_aloud(here, capsys):
    assert "--context" in fails(capsys, "train", "--text", "mine.txt", *SMALL_RUN, "--context", "4000")
    assert __main__.main(["train", "--text", "mine.txt", *SMALL_RUN]) == 0
    assert "the context is shortened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--steps", "0"], "steps must be a whole number of at least 1; got 0"),
        (["train", "--width", "65"], "d_model=65"),
        (["train", "--device", "tpu"], "'tpu'"),
        (["generate", "--run", "nowhere"], "no checkpoint in nowhere"),
        (["generate", "--model", "nowhere"], "nowhere"),
        (["generate", "--run", ""], "no checkpoint in ."),
        (["count", "gpt-5"], "no preset 'gpt-5'; choose one of"),
        (["count", "toy", "depth=3"], "'depth=3' is no FIELD=VALUE"),
        (["count", "llama2-7b", "n_heads=7"], "n_heads=7"),
        (["count", "llama2-7b", "n_layers=1000000000"], "n_layers must be at most 10,000; got 1,000,000,000"),
        (["train", "--text", "mine.txt", "--context", "-3"], "--context must be a whole number from 1"),
        (["train", "--text", "mine.txt", "--seed", "9" * 30], "seed must be a whole number"),
        (["train", "--text", "mine.txt", "--width", "1000000"], "of memory, and .* free"),
        (["train", "--batch-size", "100000000"], "of memory, and .* free"),
        (["train", "--text", "mine.txt", "--vocabulary", "1000000000"], "at most .* pieces"),
        (["experiments", "--list", "--seeds", "1000000000"], "--seeds must be from 1 to 1,000"),
    ],
)
def test_bad_requests(here, capsys, arguments, message):
    assert re.search(message, fails(capsys, *arguments))


def test_generate_refuses_what_does_not_fit_and_what_cannot_be(here, capsys):
    model = build(small(vocab_size=290, max_seq_len=30))
    save_model(model, here / "saved", Tokenizer.train("the cat sat on the mat. " * 50, 290))
    for arguments, message in (
        (["--max-new-tokens", "31"], "max_seq_len=30"),
        (["--max-new-tokens", "0"], "at least 1; got 0"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "2"], "top_p"),
        (["the cat " * 30], "max_seq_len=30"),
    ):
        assert message in fails(capsys, "generate", "--run", "saved", *arguments)
    assert __main__.main(["generate", "--run", "saved", "--seed", "0"]) == 0  # no prompt: a new line
    save_model(model, here / "bare")
    assert "without its vocabulary" in fails(capsys, "generate", "--run", "bare")


def streamed(*arguments: str) -> subprocess.Popen:
    line = [sys.executable, "-m", "transformer_lib", "generate", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@needs_smollm2
def test_text_streams_as_it_comes():
    """The first piece is there while most of the text is still to be computed."""
    with streamed(
        "--model", "smollm2-135m", "--temperature", "0", "--max-new-tokens", "20", "The capital of France is"
    ) as run:
        came = []
        while piece := os.read(run.stdout.fileno(), 4096):
            came.append((time.perf_counter(), piece))
        assert run.wait() == 0, run.stderr.read()
    text = b"".join(piece for _, piece in came).decode()
    assert text.startswith("The capital of France is Paris.\n\nThe answer is:")
    assert len(came) >= 15, f"{len(came)} pieces for 20 tokens"
    times = [at for at, _ in came]
    assert max(b - a for a, b in itertools.pairwise(times)) < 0.6 * (times[-1] - times[0]), "nearly all came at once"


@needs_smollm2
def test_ctrl_c_stops_a_text_cleanly():
    with streamed("--model", "smollm2-135m", "--max-new-tokens", "2000", "Once upon a time") as run:
        seen = os.read(run.stdout.fileno(), 4096)  # the prompt
        seen += os.read(run.stdout.fileno(), 4096)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors.decode().strip() == "Stopped." and seen.startswith(b"Once upon a time")


@needs_smollm2
def test_a_chat_answers_and_ends_by_itself(capsys):
    question = "What is the capital of France? Answer in one word."
    request = ["generate", "--model", "smollm2-135m", "--chat", "--temperature", "0", question]
    assert __main__.main(request) == 0
    answer = capsys.readouterr().out
    assert "Paris" in answer and len(answer) < 200
    assert "<|im" not in answer and question not in answer, "marks and the question are not part of the answer"


def test_a_chat_needs_a_model_that_knows_the_marks_and_a_question(here, capsys):
    assert "smollm2-135m --chat" in fails(capsys, "generate", "--chat", "Why?")
    model = build(small(vocab_size=290))
    save_huggingface(model, Tokenizer.train("the cat sat on the mat. " * 50, 290), here / "folder")
    assert "<|im_start|>" in fails(capsys, "generate", "--model", "folder", "--chat", "Why?")


# --- the rest ---


def test_count_prints_the_totals_of_the_course(capsys):
    for preset, total in (("llama2-7b", "6,738,415,616"), ("gpt2-small", "124,439,808"), ("paper-base", "63,082,496")):
        assert __main__.main(["count", preset]) == 0
        assert re.search(rf"^total +{total} +100", capsys.readouterr().out, re.M)


def test_the_lines_of_a_table_add_up(capsys):
    for arguments in (["llama2-7b"], ["paper-base"], ["gpt2-small", "n_layers=1"]):
        assert __main__.main(["count", *arguments]) == 0
        lines = capsys.readouterr().out.split("\ntotal ")
        numbers = [int(line.split()[-2].replace(",", "")) for line in lines[0].splitlines() if line.endswith("%")]
        assert len(numbers) >= 3 and sum(numbers) == int(lines[1].split()[0].replace(",", ""))


def test_fields_are_read_as_what_they_are():
    assert parse_change("n_layers=2") == ("n_layers", 2) and parse_change("dropout=0.1") == ("dropout", 0.1)
    assert parse_change("bias=true") == ("bias", True) and parse_change("positions=none") == ("positions", "none")
    assert parse_change("head_dim=None") == ("head_dim", None)


def test_help_does_not_wait_for_torch():
    code = "import sys; from transformer_lib.__main__ import parser; parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    help_text = command("--help").stdout
    assert all(name in help_text for name in ("train", "generate", "count", "claims", "doctor"))


def test_wrong_options_end_with_status_2():
    assert command("train", "--stepz", "3").returncode == 2 and command().returncode == 2


def test_out_of_memory_gives_advice(capsys, monkeypatch):
    def no_memory(_):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(__main__, "run_count", no_memory)
    assert "smaller model" in fails(capsys, "count", "toy")


def test_a_bug_is_not_hidden(monkeypatch):
    def bug(_):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(__main__, "run_count", bug)
    with pytest.raises(RuntimeError):
        __main__.main(["count", "toy"])


def test_a_reader_that_stops_reading_is_no_error():
    code = f"{sys.executable} -m transformer_lib count llama2-7b | true"
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert "Traceback" not in result.stderr


def test_importing_the_package_sets_how_threads_wait():
    code = "import transformer_lib, os; print(os.environ['GOMP_SPINCOUNT'])"
    clean = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, env=clean).stdout == "1000\n"
    assert subprocess.run(run, capture_output=True, text=True, env=clean | {"GOMP_SPINCOUNT": "7"}).stdout == "7\n"


def test_every_public_name_is_there():
    import transformer_lib

    assert all(getattr(transformer_lib, name) is not None for name in transformer_lib.__all__)
    assert set(transformer_lib.__all__) <= set(dir(transformer_lib)) and torch is not None
    with pytest.raises(AttributeError, match="no attribute 'Transfomer'"):
        transformer_lib.Transfomer  # noqa: B018


# --- what training takes ---


def test_the_arithmetic_of_training_a_known_model(capsys):
    """Llama 2 7B by hand: 6 FLOPs per multiplying weight, and 6 · (T + 1) · d_model per layer for attention."""
    request = ["count", "llama2-7b", "--training", "--tokens", "2e12", "--devices", "256", "--flops", "2e14"]
    assert __main__.main(request) == 0
    page = capsys.readouterr().out
    per_token = 6 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096) + 6 * 4097 * 4096 * 32
    assert f"{per_token / 1e9:.2f} GFLOPs" in page and f"{2e12 * per_token:.2e} for 2e+12 tokens" in page
    per_day = 86_400 * 256 * 2e14 / per_token
    assert f"{per_day:,.0f} on 256 devices" in page and f"days in all         {2e12 / per_day:,.1f}" in page
    assert "weights 26.95 GB, gradients 26.95 GB, Adam's moments 53.91 GB" in page and "as given" in page


def test_without_a_rate_this_machine_is_measured(capsys):
    assert __main__.main(["count", "toy", "--training", "--tokens", "1e6"]) == 0
    assert re.search(r"FLOPs per second \(measured here", capsys.readouterr().out)


@pytest.mark.parametrize("wrong", [["--tokens", "0"], ["--flops", "-1"], ["--devices", "0"], ["--batch-size", "0"]])
def test_training_that_cannot_be_is_refused(wrong, capsys):
    fails(capsys, "count", "toy", "--training", *wrong)
