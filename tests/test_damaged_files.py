"""Every file that the library reads, damaged in every way: it comes back whole, or one sentence says what is wrong.

No traceback of other people's code, no hang, no more memory than a small file deserves, and nothing is executed.
"""

import contextlib
import pickle
import resource
import shutil
import struct

import nbformat
import psutil
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output
from small import build, small
from test_pretrained_gguf import SMALL, VOCABULARY, random_model, write

from transformer_lib import checkpoint, corpus
from transformer_lib.experiments import results
from transformer_lib.lessons.claims import collect
from transformer_lib.lessons.exercises import time_limit
from transformer_lib.pretrained import load_pretrained, save_huggingface, save_llama2c
from transformer_lib.tokenizer import Tokenizer

ROOM = 2 * 2**30  # bytes of address space that a reader may ask for: its files have less than 1 MB
SECONDS = 20
ABSURD = [2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**64 - 1]


def make_checkpoint(folder):
    checkpoint.save_model(build(small()), folder, Tokenizer.train("the cat sat on the mat. " * 30, 290))


def make_llama2c(folder):
    cfg = small(head_dim=None, n_kv_heads=2, n_heads=6, vocab_size=VOCABULARY.vocab_size)
    save_llama2c(build(cfg), folder / "model.bin")
    VOCABULARY.save(folder / "v.model")


def make_huggingface(folder):
    save_huggingface(build(small(vocab_size=VOCABULARY.vocab_size)), VOCABULARY, folder)


def make_gguf(folder):
    write(folder / "model.gguf", random_model(SMALL))


def make_tokenizers(folder):
    VOCABULARY.save(folder / "v.model")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.train_from_iterator(["the cat sat on the mat " * 9], trainer)
    made.save(str(folder / "tokenizer.json"))


def make_results(folder):
    results.store(folder / "experiments.json", "ladder", "llama", 0, {"recipe": "r", "loss": 1.5})


def make_text(folder):
    (folder / "text.txt").write_text("Einmal sprach der Fuchs: „Guten Tag!“\n" * 20, encoding="utf-8")


def make_notebook(folder):
    kept = {"transformer_lib": {"claim": "c", "stated": "1", "computed": "1"}}
    output = new_output("display_data", {"text/plain": "✓"}, metadata=kept)
    nbformat.write(new_notebook(cells=[new_code_cell("1", outputs=[output])]), folder / "01_x.ipynb")


def read_checkpoint(folder):
    checkpoint.read_about(folder), checkpoint.load_model(folder), checkpoint.load_tokenizer(folder)


# name: (who makes it, the file that is damaged, who reads it)
READERS = {
    "checkpoint": (make_checkpoint, checkpoint.FILE, read_checkpoint),
    "llama2.c": (make_llama2c, "model.bin", lambda folder: load_pretrained(folder / "model.bin")),
    "vocabulary beside llama2.c": (make_llama2c, "v.model", lambda folder: load_pretrained(folder / "model.bin")),
    "GGUF": (make_gguf, "model.gguf", lambda folder: load_pretrained(folder / "model.gguf")),
    "Hugging Face config": (make_huggingface, "config.json", load_pretrained),
    "Hugging Face weights": (make_huggingface, "model.safetensors", load_pretrained),
    "Hugging Face vocabulary": (make_huggingface, "tokenizer.model", load_pretrained),
    "sentencepiece": (make_tokenizers, "v.model", lambda folder: Tokenizer.load(folder / "v.model")),
    "tokenizer.json": (make_tokenizers, "tokenizer.json", lambda folder: Tokenizer.load(folder / "tokenizer.json")),
    "experiments": (make_results, "experiments.json", lambda folder: results.load(folder / "experiments.json")),
    "text": (make_text, "text.txt", lambda folder: corpus.read_text(folder / "text.txt")),
    "notebook": (make_notebook, "01_x.ipynb", collect),
}


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return (open, (str(self.victim), "w"))


@st.composite
def damages(draw):
    """A function from a file's bytes to other bytes."""
    kind = draw(st.sampled_from(["cut", "flip", "absurd", "insert", "zeros", "other"]))
    place = draw(st.one_of(st.floats(0, 1), st.integers(0, 400)))  # a share of the file, or near its beginning
    count = struct.pack(draw(st.sampled_from(["<", ">"])) + "Q", draw(st.sampled_from(ABSURD)))
    some = draw(st.binary(min_size=1, max_size=12))

    def damage(content: bytes) -> bytes:
        at = min(int(place * len(content)) if isinstance(place, float) else place, len(content) - 1)
        if kind == "cut":
            return content[:at]
        if kind == "other":
            return some * 9
        if kind == "insert":
            return content[:at] + some + content[at:]
        new = {
            "flip": bytes([content[at] ^ (some[0] or 1)]),
            "absurd": count[: 4 + 4 * (some[0] % 2)],
            "zeros": bytes(8),
        }
        return content[:at] + new[kind] + content[at + len(new[kind]) :]

    return damage


@contextlib.contextmanager
def little_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read(reader, folder) -> str | None:
    """None, or the sentence that refuses the file; anything else that is raised is a fault of the library."""
    try:
        with little_memory(), time_limit(SECONDS):
            reader(folder)
    except (ValueError, FileNotFoundError) as refusal:
        sentence = str(refusal)
        assert sentence.strip() and "\n" not in sentence.strip() and len(sentence) < 1_000, sentence
        assert "Traceback" not in sentence
        return sentence
    return None


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.long)])
def test_a_damaged_file_is_read_whole_or_refused_in_a_sentence(name, examples, tmp_path):
    make, file, reader = READERS[name]
    make(tmp_path)
    whole = (tmp_path / file).read_bytes()
    assert read(reader, tmp_path) is None, "undamaged, it is read"

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damages())
    def check(damage):
        (tmp_path / file).write_bytes(damage(whole))
        read(reader, tmp_path)

    check()


@pytest.mark.parametrize("name", READERS)
def test_empty_foreign_and_hostile_files_are_refused(name, tmp_path):
    make, file, reader = READERS[name]
    make(tmp_path)
    victim = tmp_path.parent / f"{tmp_path.name}.victim"
    path, other = tmp_path / file, (tmp_path / file).with_name("kept")
    for content in (
        b"",
        b"\0" * 5_000,
        b"\xff" * 5_000,
        bytes(range(256)) * 20,
        *(pickle.dumps(Trap(victim), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    ):
        path.write_bytes(content)
        text_like = (
            name == "text" and content[:1] not in (b"", b"\0", b"\xff") and content.isascii() and 0 not in content
        )
        assert read(reader, tmp_path) is not None or text_like, content[:20]
    path.unlink()
    assert read(reader, tmp_path) is not None or name == "experiments"  # nothing was run yet: that is no fault
    path.mkdir()
    assert read(reader, tmp_path) is not None
    shutil.rmtree(path)
    path.symlink_to(other)  # leads nowhere
    assert read(reader, tmp_path) is not None or name == "experiments"
    assert not victim.exists(), "a pickle was opened"
