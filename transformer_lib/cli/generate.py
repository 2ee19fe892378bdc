"""`python -m transformer_lib generate "Once upon a time"`: text as it comes."""

from __future__ import annotations

import torch

from transformer_lib.generation import generate
from transformer_lib.pretrained.stream import TextStream, stop_ids

NEW_TOKENS = 200


def run(options) -> int:
    model, tokenizer, stop = load(options)
    ids = tokenizer.encode(options.prompt or "\n")
    # Only the default is fitted to what the model can read: a wish that does not fit is refused by `generate`.
    room = model.cfg.max_seq_len - len(ids)
    stream = TextStream(tokenizer, ids)
    print(options.prompt, end="", flush=True)
    generate(
        model,
        torch.tensor([ids]),
        max_new_tokens=options.max_new_tokens or max(min(NEW_TOKENS, room), 1),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop_ids=stop,
        on_token=lambda new: print(stream.push(int(new[0])), end="", flush=True),
    )
    print(stream.flush())
    return 0


def load(options):
    """(model, tokenizer, ids that end the text)."""
    if options.max_new_tokens is not None and options.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be a whole number of at least 1; got {options.max_new_tokens}.")
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
