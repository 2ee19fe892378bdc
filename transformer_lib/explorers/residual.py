"""Explorers of notebook 06: the two norms, the gradient-profile lab, and two bugs to be found.

The residual-stream ledger has a module of its own, `explorers/ledger.py`.
"""

import contextlib
import functools
import math

import ipywidgets as widgets
import torch
import torch.nn.functional as F

from transformer_lib.explorers.base import Explorer, clip_text
from transformer_lib.gradients import STACK, deep_stack, gradient_profile, random_ids
from transformer_lib.ledger import ledger
from transformer_lib.losses import cross_entropy
from transformer_lib.norms import LayerNorm, RMSNorm
from transformer_lib.plots.residual_panels import GradientLab, NextWords, NormLab
from transformer_lib.plots.scaling_panels import CheckList
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record

LONGEST = 40  # tokens of a typed text
VECTOR = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.9])


def norm_lab() -> Explorer:
    """Stretch and shift a vector, and see which norm notices."""
    norms = LayerNorm(len(VECTOR)), RMSNorm(len(VECTOR))

    @torch.no_grad()
    def outputs(x):
        return [norm(x).numpy() for norm in norms]

    def build(fig):
        first = outputs(VECTOR)
        lab = NormLab(fig, VECTOR.numpy(), *first)

        def update(scale, shift):
            x = scale * VECTOR + shift
            now = outputs(x)
            lab.set([x.numpy(), *now])
            moved = [float(abs(a - b).max()) for a, b in zip(now, first, strict=True)]
            return (
                f"x · {scale:.3g} + {shift:g}: LayerNorm's output moves by up to {moved[0]:.3f}, "
                f"RMSNorm's by up to {moved[1]:.3f}."
            )

        return update

    controls = {
        "scale": widgets.FloatLogSlider(2.0, base=2, min=-14, max=1, step=0.5, description="multiply by",
                                        readout_format=".3g"),
        "shift": widgets.FloatSlider(2.5, min=-4, max=4, step=0.5, description="then add"),
    }  # fmt: skip
    title = "LayerNorm forgets scale and shift, RMSNorm the scale alone"
    return Explorer(build, controls, title=title, name="norm_lab", figsize=(8, 3.2))


_stack = functools.lru_cache(maxsize=6)(deep_stack)


@functools.lru_cache(maxsize=1000)
def _profile(depth: int, position: str, residual: bool, start: str, seed: int):
    return gradient_profile(_stack(start=start, seed=seed), random_ids(seed=seed), depth, position, residual)


def gradient_lab() -> Explorer:
    """Depth, norm placement, the residual connection and the start: what is left of the gradient at each block?"""

    def build(fig):
        lab = GradientLab(fig, STACK.n_layers)

        def update(depth, position, residual, start, seed):
            profile = _profile(depth, position, residual, start, seed)
            lab.set(profile, position == "post")
            first, last = profile.weights[0], profile.weights[-1]
            return (
                f"{depth} blocks, {position}-norm, residual {'on' if residual else 'off'}: gradient {first:.1g} at the "
                f"first block, {last:.1g} at the last. Positions alike {profile.alike[-1]:.3f}, stream's size "
                f"{profile.size[-1]:.2g}."
            )

        return update

    controls = {
        "depth": widgets.IntSlider(24, 1, STACK.n_layers, description="blocks"),
        "position": widgets.ToggleButtons(options=["post", "pre"], value="post", description="norm"),
        "residual": widgets.Checkbox(True, description="residual connection"),
        "start": widgets.ToggleButtons(options=["xavier", "gpt2"], value="xavier", description="start"),
        "seed": widgets.ToggleButtons(options=[0, 1, 2], value=0, description="seed"),
    }
    title = "What reaches each block at the first step?"
    return Explorer(build, controls, title=title, name="gradient_lab", figsize=(8, 4.2))


def loss_beats_guessing(model, ids):
    loss, guess = float(cross_entropy(model(ids)[:, :-1], ids[:, 1:])), math.log(model.cfg.vocab_size)
    return loss < guess, f"loss {loss:.4f}, a uniform guess {guess:.2f}"


def no_look_ahead(model, ids):
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % model.cfg.vocab_size
    off = float((model(ids) - model(other))[:, :-1].abs().max())
    return off < 1e-4, f"another last token moves earlier logits by {off:.1g}"


def norms_give_size_one(model, ids):
    with record(model) as seen:
        model(ids)
    weight = model.blocks[-1].mlp_norm.weight
    size = (seen[f"blocks.{model.cfg.n_layers - 1}.mlp.norm"] / weight).square().mean(-1).sqrt()
    off = float((size - 1).abs().max())
    return off < 0.01, f"after a norm, sizes differ from 1 by {off:.1g}"


def _against_torch(model, size):
    x = size * torch.randn(50, model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    norm = model.blocks[0].attention_norm
    shape = (model.cfg.d_model,)
    layer = isinstance(norm, LayerNorm)
    right = (
        F.layer_norm(x, shape, norm.weight, norm.bias, norm.eps)
        if layer
        else F.rms_norm(x, shape, norm.weight, norm.eps)
    )
    off = float((norm(x) - right).abs().max())
    return off < 1e-3, f"vectors of size {size:g}: largest difference from torch {off:.1g}"


def same_norm_as_torch(model, ids):
    return _against_torch(model, 1.0)


def same_tiny_norm_as_torch(model, ids):
    return _against_torch(model, 1e-3)


def stream_is_the_sum(model, ids):
    book = ledger(model, ids)
    off = float((book.writes.sum(0) - book.streams[-1]).abs().max() / book.streams[-1].abs().max())
    return off < 1e-4, f"stream and sum of writes differ by {off:.1g} of the largest number"


CHECKS = {
    "loss beats a guess": loss_beats_guessing,
    "no look ahead": no_look_ahead,
    "norms give size 1": norms_give_size_one,
    "norm = torch's": same_norm_as_torch,
    "norm = torch's, tiny vectors": same_tiny_norm_as_torch,
    "stream = sum of writes": stream_is_the_sum,
}


def break_it(model, tokenizer, text: str, bugs: dict) -> Explorer:
    """Turn a bug on, choose a check, and see whether it notices. bugs: {name: one of `lessons.bugs`}."""
    shown, switches = 6, {"none": contextlib.nullcontext} | bugs

    @functools.lru_cache(maxsize=8)
    @torch.no_grad()
    def look(sentence):
        """(ids (1, T), a note on what was left out, the right next words: names, ids and probabilities (V,))"""
        used, note = clip_text(sentence, instead=text)
        ids = torch.tensor([tokenizer.encode(used)])
        if ids.shape[1] < 2:
            ids, note = torch.tensor([tokenizer.encode(text)]), f' (one token is too short: showing "{text}")'
        if ids.shape[1] > LONGEST:
            note += f" (only the first {LONGEST} of {ids.shape[1]} tokens are used)"
            ids = ids[:, :LONGEST]
        right = model(ids)[0, -1].softmax(-1)  # (V,)
        best = right.topk(shown).indices
        names = [readable((tokenizer.pieces(tokenizer.decode([i])) or ["?"])[-1]) for i in best.tolist()]
        return ids, note, names, best, right

    @functools.lru_cache(maxsize=64)
    @torch.no_grad()
    def judged(bug: str, check: str, sentence: str):
        ids = look(sentence)[0]
        with switches[bug]():
            return CHECKS[check](model, ids)

    @functools.lru_cache(maxsize=32)
    @torch.no_grad()
    def now(bug: str, sentence: str):
        """(the next word's probabilities (V,), the loss on the text)"""
        ids = look(sentence)[0]
        with switches[bug]():
            logits = model(ids)
        return logits[0, -1].softmax(-1), float(cross_entropy(logits[:, :-1], ids[:, 1:]))

    def build(fig):
        fig.set_layout_engine("none")
        picture, listed = NextWords(fig, shown), CheckList(fig, list(CHECKS))

        def update(bug, check, sentence):
            _, note, names, best, right = look(sentence)
            passes, words = judged(bug, check, sentence)
            shares, loss = now(bug, sentence)
            picture.set(names, right[best], shares[best])
            listed.set(check, passes, words, bug in bugs)
            noticed = ("passes" if passes else "fails") + (", so it does not see the bug" * (passes and bug in bugs))
            return f"Bug: {bug}. The check “{check}” {noticed}: {words}. Loss on this text {loss:.4f}.{note}"

        return update

    controls = {
        "bug": widgets.ToggleButtons(options=list(switches), value=next(iter(bugs)), description="bug"),
        "check": widgets.ToggleButtons(options=list(CHECKS), value=next(iter(CHECKS)), description="check"),
        "sentence": widgets.Text(text, description="your sentence"),
    }
    return Explorer(build, controls, title="Which check sees which bug?", name="break_it", figsize=(8, 4.2))
