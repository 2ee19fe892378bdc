"""`python -m transformer_lib generate "Once upon a time"`: text as it comes."""

from __future__ import annotations

import torch

from transformer_lib.generation import generate
from transformer_lib.pretrained.smollm2 import chat_prompt
from transformer_lib.pretrained.stream import TextStream, stop_ids
from transformer_lib.values import shown

NEW_TOKENS = 200


def run(options) -> int:
    model, tokenizer, stop = load(options)
    prompt = as_chat(tokenizer, options.prompt) if options.chat else options.prompt
    ids = tokenizer.encode(prompt or "\n")
    # Only the default is fitted to what the model can read: a wish that does not fit is refused by `generate`.
    room = model.cfg.max_seq_len - len(ids)
    stream = TextStream(tokenizer, ids)
    print("" if options.chat else options.prompt, end="", flush=True)

    def show(new: torch.Tensor) -> None:
        """Each token as it comes; the one that ends the text is a sign, not text."""
        if options.model is None or int(new[0]) not in stop:
            print(stream.push(int(new[0])), end="", flush=True)

    generate(
        model,
        torch.tensor([ids]),
        max_new_tokens=options.max_new_tokens or max(min(NEW_TOKENS, room), 1),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop_ids=stop,
        on_token=show,
    )
    print(stream.flush())
    return 0


def as_chat(tokenizer, question: str) -> str:
    """The question in SmolLM2's chat template, the one that is known here."""
    if len(tokenizer.encode("<|im_start|>")) != 1 or len(tokenizer.encode("<|im_end|>")) != 1:
        raise ValueError("--chat needs a model trained on the marks <|im_start|> and <|im_end|>, such as smollm2-135m.")
    if not question.strip():
        raise ValueError('--chat needs a question: generate --model smollm2-135m --chat "Why is the sky blue?".')
    return chat_prompt(question)


def load(options):
    """(model, tokenizer, ids that end the text)."""
    if options.max_new_tokens is not None and options.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be a whole number of at least 1; got {shown(options.max_new_tokens)}.")
    if options.chat and not options.model:
        raise ValueError("--chat needs a chat model beside it, for example generate --model smollm2-135m --chat.")
    if options.model is not None:
        from transformer_lib.pretrained import load_pretrained

        model, tokenizer = load_pretrained(options.model)
        return model, tokenizer, stop_ids(tokenizer)
    if options.folder is not None:
        from transformer_lib.checkpoint import load_model, load_tokenizer

        tokenizer = load_tokenizer(options.folder)
        if tokenizer is None:
            raise ValueError(f"{options.folder} holds a model without its vocabulary, so it cannot read a prompt.")
        return load_model(options.folder), tokenizer, ()
    from transformer_lib.toy import load_toy

    model, tokenizer = load_toy()
    return model, tokenizer, tokenizer.encode("\n")  # a story ends with its line
