"""Checkpoints: whole or not there, and whatever is wrong with a file ends in one sentence."""

import json
import os
import struct
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small import build, random_ids, small

from transformer_lib import checkpoint
from transformer_lib.checkpoint import FILE, load_model, load_tokenizer, load_weights, read_about, save_model
from transformer_lib.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    save_model(build(small()), folder)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True},
        {"n_encoder_layers": 1, "bias": True, "norm": "layernorm"},
        {"positions": "learned", "activation": "gelu"},
    ],
)
def test_a_model_comes_back_with_every_bit(tmp_path, changes):
    model = build(small(**changes))
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.cfg == model.cfg and not loaded.training and type(loaded) is type(model)
    arguments = (random_ids(3, 7), random_ids(3, 5)) if model.cfg.n_encoder_layers else (random_ids(3, 7),)
    assert torch.equal(loaded(*arguments), model(*arguments))


def test_tied_weights_are_one_storage_in_the_file_and_after_loading(tmp_path):
    model = build(small(tie_embeddings=True))
    save_model(model, tmp_path)
    _, tensors = checkpoint.read_checkpoint(tmp_path)
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in model.parameters())
    loaded = load_model(tmp_path)
    assert loaded.unembedding.weight is loaded.embedding.weight
    assert len({weight.data_ptr() for weight in loaded.state_dict(keep_vars=True).values()}) == len(tensors)


def test_the_vocabulary_comes_back(tmp_path):
    tokenizer = Tokenizer.train("the cat sat on the mat, and the dog sat too. " * 30, 290)
    save_model(build(small()), tmp_path, tokenizer)
    text = "the cät sat 🐈\n  on ▁"
    assert load_tokenizer(tmp_path).encode(text) == tokenizer.encode(text)
    with pytest.raises(TypeError, match="class Tokenizer; got str"):
        save_model(build(small()), tmp_path, "tokenizer.model")


def test_without_a_vocabulary_there_is_none(saved):
    assert load_tokenizer(saved) is None


def test_another_model_is_refused_and_left_unchanged(saved):
    for changes, message in (({"d_ff": 41}, "size.*w_1.weight"), ({"n_layers": 3}, "blocks.2")):
        other = build(small(**changes))
        before = [weight.clone() for weight in other.parameters()]
        with pytest.raises(ValueError, match=message):
            load_weights(other, saved)
        assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_a_missing_checkpoint_is_named(tmp_path):
    assert read_about(tmp_path) is None
    with pytest.raises(ValueError, match="There is no checkpoint in"):
        load_model(tmp_path)


def refused(folder) -> str:
    with pytest.raises(ValueError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "\n" not in message and FILE in message and len(message) < 400, message
    return message


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 1000, -1])
def test_truncated_files(saved, tmp_path, length):
    (tmp_path / FILE).write_bytes((saved / FILE).read_bytes()[:length])
    refused(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_is_found_wherever_it_is(saved, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flipped")
    content = bytearray((saved / FILE).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 3000))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    (folder / FILE).write_bytes(content)
    try:
        model = load_model(folder)
    except ValueError as error:
        assert "\n" not in str(error)
    else:  # a flip in padding or in the unread spelling of the header: what was read is still exactly what was saved
        expected = load_model(saved)
        assert model.cfg == expected.cfg
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_sentence(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / FILE).write_bytes(content)
    refused(folder)


def test_foreign_and_hostile_files(tmp_path):
    save_file({"a": torch.zeros(3)}, tmp_path / FILE)
    assert "not written by this library" in refused(tmp_path)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}).encode()
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tmp_path)
    (tmp_path / FILE).write_bytes(struct.pack("<Q", 2**60) + b"{}")
    refused(tmp_path)
    (tmp_path / FILE).write_bytes(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.")  # a pickle that would run a command
    refused(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    refused(tmp_path)


def test_a_config_of_a_newer_version_is_refused(tmp_path):
    model = build(small())
    about = checkpoint.describe_model(model)
    about["config"]["invented_field"] = 3
    checkpoint.write_checkpoint(tmp_path, checkpoint.model_tensors(model), about)
    with pytest.raises(ValueError, match=r"this version cannot build.*invented_field"):
        load_model(tmp_path)


def test_a_failed_write_keeps_the_last_checkpoint_and_leaves_nothing_behind(tmp_path, monkeypatch):
    model = build(small())
    save_model(model, tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\); the last one is kept"):
        save_model(build(small(), seed=5), tmp_path)
    assert (tmp_path / FILE).read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [FILE]


def test_killed_while_saving_there_is_always_a_whole_checkpoint(tmp_path):
    """A process that does nothing but save is killed at ten moments; what is there always loads."""
    code = (
        "import sys; from small import build, small; from transformer_lib.checkpoint import save_model\n"
        "models = [build(small(vocab_size=9000), seed) for seed in (1, 2)]\n"
        "while True:\n"
        "    for model in models: save_model(model, sys.argv[1]); print('saved', flush=True)\n"
    )
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(__file__))
    sums = {float(build(small(vocab_size=9000), seed).embedding.weight.detach().sum()) for seed in (1, 2)}
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, env=environment)
    try:
        process.stdout.readline()
        for k in range(10):
            time.sleep(0.003 * (k + 1))
            process.send_signal(19)  # SIGSTOP: as good as killed, for whoever reads the folder
            assert float(load_model(tmp_path).embedding.weight.detach().sum()) in sums
            process.send_signal(18)  # SIGCONT
    finally:
        process.kill()
        process.communicate()
    assert float(load_model(tmp_path).embedding.weight.detach().sum()) in sums
