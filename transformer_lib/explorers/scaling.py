"""Explorers of notebook 03: the saturation lab, the toy's scores times a factor, and a bug to be found."""

import contextlib
import functools
import math

import ipywidgets as widgets
import torch
import torch.nn.functional as F

from transformer_lib.corpus import fresh_stories
from transformer_lib.explorers.base import Explorer, clip_text
from transformer_lib.losses import cross_entropy, token_losses
from transformer_lib.model import Transformer
from transformer_lib.plots.scaling_panels import CheckList, LossCurve, SaturationLab, TokenMap
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import edit, record
from transformer_lib.toy import encode_stories

LONGEST = 16  # tokens that a map has room for
QUERIES = 256


@functools.lru_cache(maxsize=16)
def draws(d_k: int, seed: int):
    """q (256, d_k), keys (64, d_k) and gradients at the weights (256, 64), independent, mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (QUERIES, d_k), (SaturationLab.MOST, d_k), (QUERIES, SaturationLab.MOST)
    return tuple(torch.randn(shape, generator=generator).double() for shape in shapes)


def saturate(q, keys, g, factor: float):
    """Scores q·k · factor, their weights, and the gradient that reaches each query: (N, n), (N, n), (N, d_k)."""
    scores = factor * q @ keys.T  # (N, n)
    weights = torch.softmax(scores, dim=-1)  # (N, n)
    at_scores = weights * (g - (weights * g).sum(-1, keepdim=True))  # (N, n): the Jacobian times g
    return scores, weights, factor * at_scores @ keys  # (N, d_k)


def saturation_lab() -> Explorer:
    """What width, division, temperature and number of keys do to scores, weights, Jacobian and gradients."""

    def build(fig):
        lab = SaturationLab(fig)

        def update(d_k, divided, temperature, n_keys, seed):
            q, keys, g = draws(d_k, seed)
            factor = (1 / math.sqrt(d_k) if divided else 1.0) / temperature
            _, weights, gradients = saturate(q, keys[:n_keys], g[:, :n_keys], factor)
            *_, others = saturate(q, keys[:n_keys], g[:, :n_keys], 1 / math.sqrt(d_k))
            a = weights[0]  # (n,)
            squares = weights.square().sum(-1)  # (N,)
            norms = (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()  # (N,)
            bits = torch.special.entr(weights).sum(-1).mean() / math.log(2)
            largest = weights.amax(-1).mean()
            lengths, deviation = gradients.norm(dim=-1), factor * math.sqrt(d_k)
            meters = (float(bits) / math.log2(n_keys), float(largest), 2 * float(norms.mean()))
            jacobian = torch.diag(a) - a[:, None] * a  # (n, n)
            spread = factor * q @ keys.T  # (256, 64): the histogram takes all keys
            lab.set(
                spread.numpy(), deviation, a.numpy(), jacobian.numpy(), lengths.numpy(), others.norm(dim=-1).numpy(),
                meters, divided,
            )  # fmt: skip
            return (
                f"d_k {d_k}, {'' if divided else 'not '}divided: spread {spread.std():.2f} (theory {deviation:.2f}), "
                f"largest weight {largest:.2f}, entropy {bits:.1f} of {math.log2(n_keys):.1f} bits, "
                f"gradient {lengths.median():.1g}."
            )

        return update

    controls = {
        "d_k": widgets.SelectionSlider(options=[2**i for i in range(11)], value=64, description="d_k"),
        "divided": widgets.Checkbox(False, description="divide by √d_k"),
        "temperature": widgets.FloatLogSlider(1.0, base=2, min=-4, max=4, step=0.5, description="temperature",
                                              readout_format=".2f"),
        "n_keys": widgets.IntSlider(16, 2, SaturationLab.MOST, description="number of keys"),
        "seed": widgets.IntSlider(0, 0, 30, description="seed"),
    }  # fmt: skip
    title = "How much choice, and how much gradient, does softmax leave?"
    return Explorer(build, controls, title=title, name="saturation_lab", figsize=(8, 5.6))


class Reader:
    """The toy on a learner's text: tokens, and what it does under an edit or a bug. The last texts are kept."""

    def __init__(self, model, tokenizer, text: str):
        self.model, self.tokenizer, self.text = model, tokenizer, text
        self.split = functools.lru_cache(maxsize=8)(self._split)

    def _split(self, typed: str):
        """(ids (1, T), pieces, a note on what was left out)"""
        used, note = clip_text(typed, instead=self.text)
        ids, pieces = self.tokenizer.encode(used), self.tokenizer.pieces(used)
        if len(ids) < 2:
            used, note = self.text, f' (one token has no next one to predict: showing "{self.text}")'
            ids, pieces = self.tokenizer.encode(used), self.tokenizer.pieces(used)
        if len(ids) > LONGEST:
            note += f" (only the first {LONGEST} of {len(ids)} tokens are used)"
        return torch.tensor([ids[:LONGEST]]), [readable(piece) for piece in pieces[:LONGEST]], note

    @torch.no_grad()
    def look(self, ids, factor: float = 1.0, counts=None):
        """(loss in nats per token, recording) with all scores multiplied by `factor`. counts: which targets count."""
        with edit(self.model, self._times(factor)), record(self.model) as seen:
            logits = self.model(ids)
        return float(cross_entropy(logits[:, :-1], ids[:, 1:], counts)), seen

    @torch.no_grad()
    def losses(self, ids, factors) -> list[float]:
        """The loss of one text, ids (1, T), at each of several factors: one pass for all, a row for each."""
        rows = ids.expand(len(factors), -1)  # (F, T)
        with edit(self.model, self._times(torch.tensor(factors)[:, None, None, None])):
            logits = self.model(rows)
        return token_losses(logits[:, :-1], rows[:, 1:]).mean(dim=1).tolist()

    def _times(self, factor) -> dict:
        """The edit that multiplies the scores of every layer, (B, H, T, T)."""
        return {f"blocks.{i}.attention.scores": lambda s: factor * s for i in range(self.model.cfg.n_layers)}


def score_factor(model, tokenizer, text: str) -> Explorer:
    """Multiply every score of a trained model: its attention map and its loss on the learner's sentence."""
    reader = Reader(model, tokenizer, text)
    layers, heads = range(model.cfg.n_layers), range(model.cfg.n_heads)
    factors = [2.0**i for i in range(-5, 6)]
    d_k, d_model = model.cfg.d_k, model.cfg.d_model
    marks = {"÷ √d_k": 1.0, "undivided": math.sqrt(d_k), "÷ √d_model": math.sqrt(d_k / d_model)}

    rows, counts = encode_stories(tokenizer, fresh_stories(20))
    rows, counts = rows[:, : model.cfg.max_seq_len], counts[:, 1 : model.cfg.max_seq_len]

    @functools.lru_cache(maxsize=8)
    def losses(sentence):
        return reader.losses(reader.split(sentence)[0], factors)

    @functools.lru_cache(maxsize=32)
    def look(sentence, factor):
        """(loss, weights (H, T, T) of each layer)"""
        loss, seen = reader.look(reader.split(sentence)[0], factor)
        return loss, [seen[f"blocks.{i}.attention.weights"][0].numpy() for i in layers]

    def build(fig):
        fig.set_layout_engine("none")
        stories = [reader.look(rows, factor, counts)[0] for factor in factors]
        picture, curve = TokenMap(fig), LossCurve(fig, factors, marks, stories)

        def update(sentence, factor, layer, head):
            _, tokens, note = reader.split(sentence)
            loss, maps = look(sentence, factor)
            weights = maps[layer][head]  # (T, T)
            picture.set(weights, tokens)
            curve.set(losses(sentence), factor, loss)
            largest = weights[1:].max(axis=1).mean()  # the first token sees only itself
            return (
                f"Scores × {factor:.2f}: loss on this text {loss:.2f} nats per token; layer {layer}, head {head}: "
                f"mean largest weight {largest:.2f}.{note}"
            )

        return update

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "factor": widgets.FloatLogSlider(1.0, base=2, min=-5, max=5, step=0.5, description="scores ×",
                                         readout_format=".2f"),
        "layer": widgets.ToggleButtons(options=layers, value=layers[-1], description="layer"),
        "head": widgets.ToggleButtons(options=heads, value=0, description="head"),
    }  # fmt: skip
    title = "On fresh stories, the loss is least at the size that was learned"
    return Explorer(build, controls, title=title, name="score_factor", figsize=(8, 4.2))


def rows_sum_to_one(model, ids):
    with record(model) as seen:
        model(ids)
    off = max(float((seen[f"blocks.{i}.attention.weights"].sum(-1) - 1).abs().max()) for i in range(model.cfg.n_layers))
    return off < 1e-5, f"largest distance of a row's sum from 1: {off:.0e}"


def no_look_ahead(model, ids):
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % model.cfg.vocab_size
    off = float((model(ids) - model(other))[:, :-1].abs().max())
    return off < 1e-5, f"another last token moves earlier logits by {off:.0e}"


def fused_is_readable(model, ids):
    with record(model) as seen:
        model(ids)
    off = float((model(ids) - seen["logits"]).abs().max())
    return off < 1e-3, f"fused and readable attention differ by {off:.0e} in the logits"


def loss_beats_guessing(model, ids):
    loss, guess = float(cross_entropy(model(ids)[:, :-1], ids[:, 1:])), math.log(model.cfg.vocab_size)
    return loss < guess, f"loss {loss:.2f}, a uniform guess {guess:.2f}"


def same_as_torch(model, ids):
    """torch's own function divides by √d_k unless told otherwise."""
    with record(model) as seen:
        model(ids)
    q, k, v, heads = (seen[f"blocks.0.attention.{name}"] for name in ("q", "k", "v", "heads"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    off = float((F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2) - heads).abs().max())
    return off < 1e-4, f"{model.cfg.n_heads} × {model.cfg.d_k} wide, against torch: largest difference {off:.1g}"


def one_head_as_torch(model, ids):
    """The same check on an untrained model with one head: there d_k and d_model are one number."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        single = Transformer(model.cfg.replace(n_heads=1, n_kv_heads=None, head_dim=None)).eval()
    return same_as_torch(single, ids)


CHECKS = {
    "each row of weights sums to one": rows_sum_to_one,
    "no look ahead": no_look_ahead,
    "fused = readable": fused_is_readable,
    "loss beats a guess": loss_beats_guessing,
    "= torch, one head": one_head_as_torch,
    "= torch, many heads": same_as_torch,
}


def break_it(model, tokenizer, text: str, bug, checks=CHECKS) -> Explorer:
    """Turn a bug on, choose a check, and see whether it notices. bug: one of `lessons.bugs`; checks: {name: function}.

    A check is called as check(model, ids) and returns (whether it passes, what it saw in words).
    """
    reader = Reader(model, tokenizer, text)
    last = f"blocks.{model.cfg.n_layers - 1}.attention.weights"

    def broken(on: bool):
        return bug() if on else contextlib.nullcontext()

    @functools.lru_cache(maxsize=16)
    def look(on: bool, sentence: str):
        """(loss, weights (H, T, T) of the last layer)"""
        with broken(on):
            loss, seen = reader.look(reader.split(sentence)[0])
        return loss, seen[last][0]

    @functools.lru_cache(maxsize=64)
    @torch.no_grad()
    def judged(on: bool, check: str, sentence: str):
        with broken(on):
            return checks[check](model, reader.split(sentence)[0])

    def build(fig):
        fig.set_layout_engine("none")
        picture, listed = TokenMap(fig), CheckList(fig, list(checks))

        def update(on, check, sentence):
            _, tokens, note = reader.split(sentence)
            passes, words = judged(on, check, sentence)
            loss, weights = look(on, sentence)
            head = int(look(False, sentence)[1][:, 1:].amax(-1).mean(-1).argmax())  # sharpest before all was broken
            picture.set(weights[head].numpy(), tokens)
            listed.set(check, passes, words, on)
            noticed = ("passes" if passes else "fails") + (", so it does not see the bug" if passes and on else "")
            return f"Bug {'on' if on else 'off'}, “{check}” {noticed}: {words}. Loss on this text {loss:.2f}.{note}"

        return update

    controls = {
        "on": widgets.Checkbox(False, description="turn the bug on"),
        "check": widgets.ToggleButtons(options=list(checks), value=next(iter(checks)), description="check"),
        "sentence": widgets.Text(text, description="your sentence"),
    }
    return Explorer(build, controls, title="Which check sees the bug?", name="break_it", figsize=(8, 4.2))
