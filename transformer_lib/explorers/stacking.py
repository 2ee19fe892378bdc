"""Explorers of notebook 08: sampling from the toy, and the toy with its blocks left out, repeated or swapped."""

import functools
import textwrap

import ipywidgets as widgets
import torch
from torch import Tensor

from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.generation import generate, next_token_probabilities
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable

BARS, DRAWS, NEW = 14, 3, 14  # likeliest tokens shown; continuations; their tokens
LONGEST = 16  # tokens that the depth explorer has room for
BEFORE, AFTER = "#C4C4C4", COLOURS["blue"]


def sampler(model, tokenizer, prompt: str) -> HtmlExplorer:
    """The next token's distribution before and after temperature, top-k and top-p, and what is drawn from it."""

    longest = model.cfg.max_seq_len - NEW

    @functools.lru_cache(maxsize=8)
    @torch.no_grad()
    def read(text: str):
        """(ids (1, T), a note on what was left out, logits of the next token (V,))"""
        ids = torch.tensor([tokenizer.encode(text)])
        note = f" (only the first {longest} tokens)" if ids.shape[1] > longest else ""
        return ids[:, :longest], note, model(ids[:, :longest])[0, -1]

    @functools.lru_cache(maxsize=256)
    def continued(text: str, seed: int, **how) -> list[str]:
        ids = read(text)[0]
        rows = generate(model, ids.expand(DRAWS, -1), max_new_tokens=NEW, seed=seed, **how)  # (DRAWS, T + NEW)
        return [tokenizer.decode(row.tolist()) for row in rows[:, ids.shape[1] :]]

    def draw(prompt, temperature, top_k, top_p, seed):
        text, note = clip_text(prompt)
        _, cut, logits = read(text)
        how = {"temperature": temperature, "top_k": top_k or None, "top_p": top_p}
        before, after = torch.softmax(logits, dim=-1), next_token_probabilities(logits, **how)
        texts, note = continued(text, seed, **how), cut or note
        drawing = sampling_drawing(before, after, tokenizer, text, texts)
        kept, likeliest = int((after > 0).sum()), word(tokenizer, before.argmax())
        return drawing, (
            f"Likeliest: {likeliest}, {float(before.max()):.0%} before and {float(after[before.argmax()]):.0%} after; "
            f"{kept:,} of {len(after):,} tokens can still be drawn{note}."
        )

    controls = {
        "prompt": widgets.Text(prompt, description="prompt (Enter)"),
        "temperature": widgets.FloatSlider(0.7, min=0.0, max=3.0, step=0.1, description="temperature"),
        "seed": widgets.IntSlider(0, 0, 99, description="seed"),
        "top_p": widgets.FloatSlider(0.9, min=0.05, max=1.0, step=0.05, description="top-p"),
        "top_k": widgets.IntSlider(0, 0, 50, description="top-k (0: all)"),
    }
    return HtmlExplorer(draw, controls, title="What may come next, and what is drawn", name="sampler")


def word(tokenizer, token) -> str:
    """The text of one id, as it can be read in a picture."""
    return readable(tokenizer.decode([int(token)]))


def plain(text: str) -> str:
    """One line, with what cannot be printed as �."""
    return "".join(letter if letter.isprintable() else "�" for letter in " ".join(text.split()))


def sampling_drawing(before: Tensor, after: Tensor, tokenizer, prompt: str, texts) -> Drawing:
    """Bars of the likeliest tokens, grey before and blue after; the continuations beside them. before, after: (V,)."""
    drawing = Drawing(800, 44 + BARS * 24)
    order = before.argsort(descending=True, stable=True)[:BARS].tolist()
    scale = 200 / float(torch.maximum(before, after).max())  # pixels per unit of probability
    drawing.text(4, 14, "next token: before (grey), after (blue)", anchor="start", bold=True)
    for row, token in enumerate(order):
        y, name = 34 + row * 24, word(tokenizer, token)
        p, q = float(before[token]), float(after[token])
        drawing.text(104, y + 10, name, anchor="end")
        hover = f"{name}: {p:.2%} before, {q:.2%} after"
        drawing.rect(112, y, max(scale * p, 1), 20, BEFORE, hover=hover)
        if q > 0:
            drawing.rect(112, y + 5, max(scale * q, 1), 10, AFTER, hover=hover)
        drawing.text(120 + scale * max(p, q), y + 10, f"{q:.1%}" if q > 0 else "cut", anchor="start",
                     colour=AFTER if q > 0 else COLOURS["grey"])  # fmt: skip
    drawing.text(400, 14, f"{DRAWS} continuations, {NEW} tokens each", anchor="start", bold=True)
    lines = textwrap.wrap(plain(prompt), 42)[-4:]
    for k, line in enumerate(lines):
        drawing.text(400, 44 + 21 * k, line, anchor="start")
    y = 58 + 21 * len(lines)
    for text in texts:
        for k, line in enumerate(textwrap.wrap("… " + plain(text), 42)[:5]):
            drawing.text(400, y + 21 * k, line, anchor="start", colour=AFTER)
        y += 21 * k + 34
    return drawing


def orders(n_layers: int) -> dict[str, list[int]]:
    """Ways to run the blocks: {name: indices in the order in which they run}."""
    every = list(range(n_layers))
    singles = {f"block {i} alone": [i] for i in every} if n_layers <= 3 else {"first half": every[: n_layers // 2]}
    twice = [i for i in every for _ in range(2)]
    return {"none": [], **singles, "reversed": every[::-1], "each twice": twice, "as trained": every}


@torch.no_grad()
def run_blocks(model, ids: Tensor, order) -> Tensor:
    """The logits with the blocks of `order`, in that order: ids (B, T) -> (B, T, V)."""
    positions = torch.arange(ids.shape[1])
    x, rotation = model.embed(ids, positions), model.rotation(positions)  # (B, T, d_model)
    for i in order:
        x = model.blocks[i](x, rotation=rotation, causal=True)
    return model.unembedding(x if model.final_norm is None else model.final_norm(x))  # (B, T, V)


def how_deep(model, tokenizer, sentence: str) -> HtmlExplorer:
    """Token by token, how surprised the toy is when its blocks are left out, swapped or repeated."""
    ways = orders(model.cfg.n_layers)

    def draw(sentence, blocks):
        text, note = clip_text(sentence)
        ids = torch.tensor([tokenizer.encode("\n" + text)])  # (1, 1 + T): every story follows a newline
        if ids.shape[1] > LONGEST:
            ids, note = ids[:, :LONGEST], f" (only the first {LONGEST - 1} tokens are shown)"
        log_p = {name: torch.log_softmax(run_blocks(model, ids, ways[name])[0], -1) for name in (blocks, "as trained")}
        losses = {name: -p[:-1].gather(1, ids[0, 1:, None])[:, 0] for name, p in log_p.items()}  # (T,) each
        drawing = surprise_drawing(log_p[blocks][:-1], losses, ids[0, 1:], blocks, tokenizer)
        mean, trained = (float(losses[name].mean()) for name in (blocks, "as trained"))
        return drawing, f"Blocks: {blocks}. Loss {mean:.2f} nats per token; as trained {trained:.2f}{note}."

    controls = {
        "sentence": widgets.Text(sentence, description="sentence (Enter)"),
        "blocks": widgets.ToggleButtons(options=list(ways), value=list(ways)[1], description="blocks"),
    }
    return HtmlExplorer(draw, controls, title="How deep must the stack be for each token?", name="how_deep")


def surprise_drawing(log_p: Tensor, losses: dict, ids: Tensor, blocks: str, tokenizer) -> Drawing:
    """One row per token: its surprise, and what was expected instead. log_p: (T, V); losses: (T,) each; ids: (T,)."""
    drawing = Drawing(800, 46 + len(ids) * 26)
    drawing.text(104, 14, "token", anchor="end", bold=True)
    drawing.text(112, 14, "surprise in nats; red line: as trained", anchor="start", bold=True)
    drawing.text(520, 14, "what these blocks expected", anchor="start", bold=True)
    scale = 300 / 14  # pixels per nat
    for row, token in enumerate(ids.tolist()):
        y, name = 34 + 26 * row, word(tokenizer, token)
        now, trained = float(losses[blocks][row]), float(losses["as trained"][row])
        hover = f"{name}: {now:.2f} nats with these blocks, {trained:.2f} as trained"
        drawing.text(104, y + 10, name, anchor="end")
        drawing.rect(112, y, 300, 20, "#F4F4F4", hover=hover)
        drawing.rect(112, y, max(min(now, 14) * scale, 1), 20, AFTER, hover=hover)
        at = 112 + min(trained, 14) * scale
        drawing.line(at, y - 2, at, y + 22, COLOURS["red"], 3)
        drawing.text(420, y + 10, f"{now:.2f}", anchor="start")
        best = log_p[row].topk(2)
        guesses = [f"{word(tokenizer, i)} {p:.0%}" for i, p in zip(best.indices, best.values.exp(), strict=True)]
        drawing.text(520, y + 10, ",  ".join(guesses), anchor="start")
    return drawing
