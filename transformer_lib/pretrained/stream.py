"""Text as it comes: ids one at a time, and which of them end it."""

from __future__ import annotations

from collections.abc import Sequence

ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")  # of SmolLM2, GPT-2, Llama 3, Llama 2


def stop_ids(tokenizer) -> tuple[int, ...]:
    """The ids at which `generate(…, stop_ids=…)` should stop: the end of the text or of the assistant's turn."""
    found = {tokenizer.eos_id} if tokenizer.eos_id is not None else set()
    for ids in map(tokenizer.encode, ENDS):
        if len(ids) == 1 and ids[0] != tokenizer.unk_id:
            found.add(ids[0])
    return tuple(sorted(found))


class TextStream:
    """Turns ids into text, one at a time; the pieces joined are `tokenizer.decode` of all of them.

        stream = TextStream(tokenizer, prompt_ids)
        generate(model, ids, on_token=lambda new: print(stream.push(int(new[0])), end="", flush=True), …)
        print(stream.flush())

    A character that is spread over several tokens comes with the last of them. prompt_ids: what stands before.
    """

    def __init__(self, tokenizer, prompt_ids: Sequence[int] = ()):
        self.tokenizer = tokenizer
        self.known = list(prompt_ids)[-8:]  # enough before the new ids to decode their spaces as in the whole text
        self.new: list[int] = []

    def push(self, token: int) -> str:
        """What this id adds to the text; "" while a character is incomplete."""
        self.new.append(token)
        return "" if self.added().endswith("\ufffd") else self.flush()

    def flush(self) -> str:
        """The rest, complete or not."""
        text = self.added()
        self.known, self.new = (self.known + self.new)[-8:], []
        return text

    def added(self) -> str:
        before = self.tokenizer.decode(self.known)
        return self.tokenizer.decode(self.known + self.new)[len(before) :]
