"""Whatever a command line says: the command does it, or its last line is one sentence that names what is wrong.

In process, through `main`; what would take minutes (long trainings, measurements) is cut out, and nothing else.
"""

import contextlib
import io
import pathlib
import re
from types import SimpleNamespace

import pytest
from anything import examples, tried
from hypothesis import strategies as st
from small import build, small

from transformer_lib import __main__, corpus, toy
from transformer_lib.checkpoint import save_model
from transformer_lib.cli import bench
from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.experiments import runner
from transformer_lib.pretrained import save_huggingface
from transformer_lib.tokenizer import Tokenizer

# What a shell can hand over: no NUL, and bytes that are no UTF-8 as halves of surrogate pairs. No path out of here.
LETTERS = st.characters(blacklist_characters="\0/~", blacklist_categories=["Cs"]) | st.sampled_from(
    "\udc80\udcff\n\x1b"
)
WORDS = st.text(LETTERS, max_size=12) | st.sampled_from(["", " ", ".", "-", "--", "-1", "saved", "mine.txt", "x" * 300])
ODD_NUMBERS = [
    "1e9", "-0", "+2", "1_0", "²", "٣", "nan", "inf", "-inf", "1e400", "1e-320", "0.5", "2147483648", "9" * 40,
    "9" * 5_000,
]  # fmt: skip
NUMBERS = st.integers(-3, 5).map(str) | st.sampled_from(ODD_NUMBERS)
ANY = WORDS | NUMBERS


@st.composite
def command_lines(draw, start, options, arguments=None):
    """`start`, then some options with values that are right twice in three times, and arguments."""
    line = list(start)
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=4)) if options else ():
        kind = options[name]
        line += [f"--{name}"] if kind is None else [f"--{name}", draw(st.one_of(kind, kind, ANY))]
    return line + draw(arguments if arguments is not None else st.just([]))


def run(line) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a command; both can be written to a terminal that knows UTF-8."""
    out, errors = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace")
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = __main__.main(line)
        except SystemExit as stop:  # argparse
            status = stop.code
    written = []
    for stream in (out, errors):
        stream.flush()
        written.append(stream.buffer.getvalue().decode())
    return status, *written


def check_line(line) -> str:
    """Runs it; returns what it printed."""
    status, out, errors = run(line)
    assert status in (0, 1, 2), line
    assert "Traceback" not in errors and "\x1b" not in errors
    if status:
        said = errors.strip().splitlines()
        sentence = said[-1]
        # argparse writes how the command is used, and then its sentence, which has no full stop.
        notes = [text for text in said[:-1] if not text.startswith(("The text has", "Training ", "bench: "))]
        assert sentence.startswith("python -m transformer_lib") if status == 2 else notes == [], errors
        assert status == 2 or sentence.endswith("."), sentence
        assert 20 < len(sentence) < 800 + max(map(len, line), default=0), "a path may be long, a sentence not"
    return out


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a text, a run, and a model in Hugging Face's form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toy, "TEXT_BYTES", 50_000)
    monkeypatch.setattr(toy, "N_EVALUATED", 3)
    pathlib.Path("mine.txt").write_text(corpus.pydoc_text()[:1100])
    vocabulary, model = (
        Tokenizer.train("the cat sat on the mat. " * 50, 290),
        build(small(vocab_size=290, max_seq_len=30)),
    )
    save_model(model, "saved", vocabulary)
    save_huggingface(model, vocabulary, pathlib.Path("folder"))


# A number is small, or so large that it must be refused: what lies between is a training that takes long.
SIZES = st.sampled_from(["1", "2", "3", "8", "0", "-1", "1000000000", "9" * 30])
TRAIN = {
    "text": st.just("mine.txt"), "out": st.sampled_from(["a", "b/c", "mine.txt", "saved"]),
    "steps": st.sampled_from(["1", "2", "0", "-4", "99999999999"]), "batch-size": SIZES, "context": SIZES,
    "learning-rate": st.floats().map(str), "vocabulary": st.sampled_from(["300", "257", "1", "3000", "100000000000"]),
    "width": st.sampled_from(["16", "8", "6", "1", "0", "100000000"]), "heads": SIZES, "layers": SIZES,
    "seed": st.integers().map(str), "threads": SIZES, "device": st.sampled_from(["cpu", "cuda", "mps", "meta"]),
    "precision": st.sampled_from(["float32", "bf16", "fp8"]),
}  # fmt: skip
SMALL_RUN = [
    "train",
    "--text",
    "mine.txt",
    "--steps",
    "1",
    "--batch-size",
    "2",
    "--width",
    "16",
    "--heads",
    "2",
    "--layers",
    "1",
]


@examples(20, 500)
def test_any_training_is_done_or_refused(here, examples):
    tried(command_lines(SMALL_RUN, TRAIN), examples, check_line)


GENERATE = {
    "max-new-tokens": st.integers(-1, 40).map(str), "temperature": st.floats().map(str),
    "top-k": st.integers(-1, 400).map(str), "top-p": st.floats(-0.1, 1.1).map(str),
    "seed": st.integers().map(str), "chat": None, "run": st.just("saved"),
}  # fmt: skip


@examples(60, 2_000)
def test_any_prompt_is_continued_or_refused(here, examples):
    prompts = st.lists(ANY, max_size=2)
    for start in (["generate", "--run", "saved"], ["generate", "--model", "folder"]):
        tried(command_lines(start, GENERATE, prompts), examples // 2, check_line)


@examples(20, 500)
def test_any_path_of_a_model_is_opened_or_refused(here, examples):
    paths = st.tuples(st.sampled_from(["--run", "--model"]), ANY).map(list)
    tried(command_lines(["generate", "--max-new-tokens", "1"], {}, paths), examples, check_line)


COUNT = {
    "training": None, "tokens": st.floats().map(str), "devices": st.integers().map(str),
    "flops": st.floats().map(str), "batch-size": st.integers().map(str),
}  # fmt: skip
FIELDS = [*TransformerConfig.__dataclass_fields__, "depth", ""]
CHANGES = st.lists(st.tuples(st.sampled_from(FIELDS), ANY | st.integers().map(str)).map("=".join) | ANY, max_size=2)
PRESET = st.sampled_from(sorted(PRESETS))


@examples(100, 5_000)
def test_any_model_is_counted_or_refused(here, examples):
    names = st.tuples(PRESET | PRESET | ANY, CHANGES).map(lambda pair: [pair[0], *pair[1]])

    def check(line):
        assert not re.search(r"\b(inf|nan)\b", check_line(line))

    tried(command_lines(["count", "--flops", "1e12"], COUNT, names), examples, check)


BENCH = {
    "quick": None, "rounds": SIZES, "threads": SIZES, "clock": st.sampled_from(["wall", "cpu", "sun"]),
    "notebooks": st.sampled_from(["02", "99"]), "out": st.sampled_from(["bench.json", "saved", "no/where.json"]),
}  # fmt: skip


@examples(60, 1_000)
def test_any_measurement_is_made_or_refused(here, examples, monkeypatch):
    measured = []
    section = SimpleNamespace(run=lambda options: measured.append(options) or [])
    monkeypatch.setattr(bench, "import_module", lambda name: section)

    def check(line):
        measured.clear()
        out = check_line(line)
        assert bool(measured) == ("all figures" in out), "refused before minutes are spent, not after"

    sections = st.lists(st.sampled_from(list(bench.SECTIONS)) | ANY, max_size=2)
    tried(command_lines(["bench"], BENCH, sections), examples, check)


EXPERIMENTS = {
    "only": st.sampled_from([*runner.NAMES, "ladders"]), "seeds": SIZES, "workers": SIZES, "steps": SIZES,
    "out": st.sampled_from(["new.json", "mine.txt", "saved", "no/where.json"]), "list": None,
}  # fmt: skip


@examples(20, 300)
def test_any_experiment_is_run_or_refused(here, examples, monkeypatch):
    monkeypatch.setattr(runner, "make", lambda job, steps: {"recipe": "r"})
    monkeypatch.setattr(runner, "run_all", lambda *_: 0)
    tried(command_lines(["experiments"], EXPERIMENTS), examples, check_line)


@examples(20, 500)
def test_any_folder_of_notebooks_is_listed_or_refused(here, examples):
    tried(command_lines(["claims"], {"notebooks": st.sampled_from([".", "saved", "mine.txt"])}), examples, check_line)


@examples(60, 2_000)
def test_any_words_are_answered(here, examples):
    """No command, another one, or options that there are not."""
    tried(
        st.lists(ANY | st.sampled_from(["count", "tran", "--help", "-h", "--steps"]), max_size=3), examples, check_line
    )
