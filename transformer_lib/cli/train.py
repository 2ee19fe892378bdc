"""`python -m transformer_lib train`: the toy on its stories, or a small model on a text of the user's."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import psutil
import torch
from torch import Tensor

from transformer_lib import corpus, toy
from transformer_lib.accounting import gb, training_memory
from transformer_lib.config import LARGEST, TransformerConfig
from transformer_lib.devices import pick_device
from transformer_lib.distributed import Team
from transformer_lib.generation import generate
from transformer_lib.model import Transformer
from transformer_lib.tokenizer import Tokenizer
from transformer_lib.training import TextBatches, TrainConfig, mean_loss, train
from transformer_lib.values import shown

SHORTEST_TEXT = 1_000  # characters
CHARACTERS_PER_PIECE = 60  # of the text, for each entry of the vocabulary: rarer pieces are hardly learnt
SMALLEST_VOCABULARY = 300
HELD_OUT = 0.1  # share of the text, its end
EVALUATED_WINDOWS = 100
SAMPLE_TOKENS = 120


def run(options) -> int:
    pick_device(options.device)  # refused before the text is read, not after
    for name in ("context", "vocabulary"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= LARGEST:
            raise ValueError(f"--{name} must be a whole number from 1 to {LARGEST:,}; got {shown(value)}.")
    training_of(options, toy.TRAINING)
    with nullcontext() if Team.from_environment().leads else redirect_stdout(io.StringIO()):
        (train_stories if options.text is None else train_text)(options)
    return 0


def train_stories(options) -> None:
    """The toy; with any option changed, a relative of it in a folder of its own."""
    context, base = options.context or toy.CONTEXT, toy.CONFIG
    longest = max(base.max_seq_len, context)
    if options.vocabulary:  # a small vocabulary cuts a story into more tokens; with RoPE, room for them costs nothing
        base = base.replace(vocab_size=options.vocabulary)
        longest = max(longest, 2 * base.max_seq_len)
    base = base.replace(max_seq_len=longest)
    config, training = config_of(options, base), training_of(options, toy.TRAINING)
    refuse_what_does_not_fit(config, training, context)
    is_the_toy = (config, training, context) == (toy.CONFIG, toy.TRAINING, toy.CONTEXT)
    out = Path(options.out) if options.out else toy.toy_folder() if is_the_toy else Path("runs", "stories")
    if is_the_toy and options.out is None and Team.from_environment().size == 1:
        toy.train_together(out, progress=True)  # and what is left to do, if anything, this process does
    model, tokenizer, history = toy.train_toy(out, config, training, context)
    floor = toy.entropy_floor(tokenizer, corpus.fresh_stories(toy.N_EVALUATED))
    print(
        f"Loss on fresh stories: {history.evaluations[-1][1]:.3f} nats per token; the stories' own entropy, below "
        f"which no model can stay: {floor:.3f}."
    )
    show_sample(model, tokenizer, out)


def train_text(options) -> None:
    """A model on any text; its last tenth is kept for measuring the loss."""
    text = corpus.read_text(options.text, min_characters=SHORTEST_TEXT)
    tokenizer = learn_vocabulary(text, options.vocabulary)
    ids = torch.tensor(tokenizer.encode(text))  # (N,)
    context = fitting_context(len(ids), options.context)
    base = toy.CONFIG.replace(vocab_size=tokenizer.vocab_size, max_seq_len=context + 1)
    config = config_of(options, base)
    training = training_of(options, toy.TRAINING)
    refuse_what_does_not_fit(config, training, context)
    cut = len(ids) - max(int(HELD_OUT * len(ids)), context + 1)
    held_out = windows(ids[cut:], context)
    out = Path(options.out) if options.out else Path("runs", Path(options.text).stem)
    torch.manual_seed(training.seed)
    model = Transformer(config)

    def evaluate(model: Transformer) -> float:
        return mean_loss(model, held_out.to(model.embedding.weight.device).split(training.batch_size))

    batches = TextBatches(ids[:cut], context)
    history = train(model, batches, training, evaluate=evaluate, out=out, tokenizer=tokenizer)
    best_step, best = min(history.evaluations, key=lambda pair: pair[1])
    print(f"Loss on the text's last part, not trained on: {history.evaluations[-1][1]:.3f} nats per token.")
    if best < history.evaluations[-1][1] - 0.05:
        print(f"It was {best:.3f} at step {best_step:,}: the text is short and was learnt by heart; fewer --steps do.")
    show_sample(model, tokenizer, out)


def config_of(options, base: TransformerConfig) -> TransformerConfig:
    """`base` with what the options change."""
    chosen = {"d_model": options.width, "n_layers": options.layers, "n_heads": options.heads}
    changes = {name: value for name, value in chosen.items() if value is not None}
    if changes.keys() & {"d_model", "n_heads"}:
        changes["head_dim"] = None  # the toy's own belongs to its own width: another width is shared by its heads
    return base.replace(**changes)


def training_of(options, base: TrainConfig) -> TrainConfig:
    """`base` with what the options change."""
    names = ("steps", "batch_size", "learning_rate", "seed", "threads", "device", "precision")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return dataclasses.replace(base, **chosen)


def refuse_what_does_not_fit(config: TransformerConfig, training: TrainConfig, context: int) -> None:
    """Say so before anything is built: a system that has run out of memory ends programs instead of answering."""
    needed, free = training_memory(config, context, training.batch_size).total, psutil.virtual_memory().available
    if pick_device(training.device).type == "cpu" and needed > free:
        raise ValueError(
            f"This training needs {gb(needed)} of memory, and {gb(free)} are free: take a smaller --width, --layers, "
            f"--vocabulary, --batch-size or --context, or end other programs."
        )


def learn_vocabulary(text: str, size: int | None) -> Tokenizer:
    """A vocabulary of `size` pieces; None: as many as the text gives examples for, up to the toy's 1,024.

    A text of many different characters (Chinese, say) needs more, and a repetitive one cannot give so many: the
    tokenizer then says how many it can be.
    """
    if size is not None:
        return Tokenizer.train(text, size)
    wanted = min(max(len(text) // CHARACTERS_PER_PIECE, SMALLEST_VOCABULARY), toy.CONFIG.vocab_size)
    try:
        return Tokenizer.train(text, wanted)
    except ValueError as error:
        possible = re.search(r"ask for (\d+)", str(error))
        if possible is None:
            raise
        return Tokenizer.train(text, int(possible[1]))


def fitting_context(n_tokens: int, wanted: int | None) -> int:
    """Tokens per sequence: as wanted, or the toy's; shorter, with a note, where a tenth of the text fills none."""
    context = toy.CONTEXT if wanted is None else wanted
    longest = n_tokens // 10 - 1
    if context <= longest or n_tokens >= 20 * (context + 1):
        return context
    if wanted is not None:
        raise ValueError(f"The text has {n_tokens:,} tokens, enough for --context {longest} at most; got {wanted}.")
    print(f"The text has {n_tokens:,} tokens: the context is shortened from {context} to {longest}.", file=sys.stderr)
    return longest


def windows(ids: Tensor, context: int) -> Tensor:
    """(N,) -> the first windows side by side, (n, context + 1)."""
    n = min(len(ids) // (context + 1), EVALUATED_WINDOWS)
    return ids[: n * (context + 1)].view(n, context + 1)


def show_sample(model: Transformer, tokenizer: Tokenizer, out: Path) -> None:
    start = torch.tensor([tokenizer.encode("\n")], device=model.embedding.weight.device)  # (1, 1)
    length = min(SAMPLE_TOKENS, model.cfg.max_seq_len - start.shape[1])
    ids = generate(model, start, max_new_tokens=length, temperature=0.8, seed=0)[0]
    print(f"\nA sample:\n{tokenizer.decode(ids.tolist()).strip()}\n")
    print(f'More: python -m transformer_lib generate --run "{out}" "Once upon a time"')
