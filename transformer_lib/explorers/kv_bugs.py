"""Break it, notebook 10: two bugs of cached decoding, eight checks, and which of them see which."""

import contextlib
import functools
from typing import NamedTuple

import ipywidgets as widgets
import torch

from transformer_lib.accounting import kv_cache_bytes
from transformer_lib.explorers.base import Explorer, clip_text
from transformer_lib.kv_cache import KVCache
from transformer_lib.plots.scaling_panels import CheckList, TokenMap
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import record

LONGEST = 16  # tokens that the map has room for
CLOSE = 1e-3


class Reading(NamedTuple):
    """A text read one token at a time through a cache."""

    logits: torch.Tensor  # (1, T, V)
    cache: KVCache
    seen: list  # a recording for each token


def one_by_one(model, ids) -> Reading:
    """ids: (1, T) int64."""
    cache, pieces, seen = model.new_cache(*ids.shape), [], []
    for token in ids.split(1, dim=1):  # (1, 1) each
        with record(model) as one:
            pieces.append(model(token, cache=cache))
        seen.append(one)
    return Reading(torch.cat(pieces, dim=1), cache, seen)


def shapes_and_numbers(model, ids, read):
    fine = read.logits.shape == (*ids.shape, model.cfg.vocab_size) and bool(read.logits.isfinite().all())
    words = f"logits {tuple(read.logits.shape)}, all finite; {read.cache.length} stored"
    return fine and read.cache.length == ids.shape[1], words


def bytes_as_expected(model, ids, read):
    size = model.embedding.weight.element_size()
    wanted = kv_cache_bytes(model.cfg, ids.shape[1], 1, size)
    return read.cache.nbytes == wanted, f"{read.cache.nbytes:,} bytes, {wanted:,} expected"


def no_look_ahead(model, ids, read):
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % model.cfg.vocab_size
    off = float((model(ids) - model(other))[:, :-1].abs().max())
    return off < 1e-5, f"another last token moves earlier logits by {off:.0e}"


def prefill_alone(model, ids, read):
    off = float((model(ids, cache=model.new_cache(*ids.shape)) - model(ids)).abs().max())
    return off < CLOSE, f"the whole prompt into an empty cache: difference {off:.0e}"


def repeatable(model, ids, read):
    off = float((one_by_one(model, ids).logits - read.logits).abs().max())
    return off == 0, f"two runs of the same text: difference {off:.0e}"


def stored_keys(model, ids, read):
    with record(model) as seen:
        model(ids)
    off = float((read.cache.keys[0] - seen["blocks.0.attention.k"]).abs().max())
    return off < CLOSE, f"keys of layer 0, stored against recomputed: difference {off:.2g}"


def sees_every_key(model, ids, read):
    weights = read.seen[-1]["blocks.0.attention.weights"][0, :, 0]  # (H, T)
    blind = int((weights == 0).all(dim=0).sum())
    return blind == 0, f"the last token is blind to {blind} of {weights.shape[1]} keys"


def cached_is_recomputed(model, ids, read):
    off = float((read.logits - model(ids)).abs().max())
    return off < CLOSE, f"logits, one by one against one pass: difference {off:.2g}"


CHECKS = {
    "shapes right, numbers finite": shapes_and_numbers,
    "cache has the right size": bytes_as_expected,
    "no look ahead": no_look_ahead,
    "prefill = no cache": prefill_alone,
    "the same twice": repeatable,
    "stored keys = recomputed": stored_keys,
    "new token sees every key": sees_every_key,
    "one by one = one pass": cached_is_recomputed,
}


@torch.no_grad()
def run_checks(model, ids, bug=contextlib.nullcontext) -> dict[str, bool]:
    """{check: whether it passes} with a bug on."""
    with bug():
        read = one_by_one(model, ids)
        return {name: bool(passes(model, ids, read)[0]) for name, passes in CHECKS.items()}


def break_cache(model, tokenizer, text: str, bugs: dict) -> Explorer:
    """Turn on one of two bugs, choose a check, and see whether it notices. bugs: {name: one of `lessons.bugs`}."""
    last = f"blocks.{model.cfg.n_layers - 1}.attention.weights"
    switches = {"none": contextlib.nullcontext} | bugs

    @functools.lru_cache(maxsize=8)
    def split(typed: str):
        used, note = clip_text(typed, instead=text)
        ids, pieces = tokenizer.encode(used), tokenizer.pieces(used)
        if len(ids) < 2:
            used, note = text, f' (one token needs no cache: showing "{text}")'
            ids, pieces = tokenizer.encode(used), tokenizer.pieces(used)
        if len(ids) > LONGEST:
            note += f" (only the first {LONGEST} of {len(ids)} tokens are used)"
        return torch.tensor([ids[:LONGEST]]), [readable(piece) for piece in pieces[:LONGEST]], note

    @functools.lru_cache(maxsize=32)
    @torch.no_grad()
    def reading(bug: str, sentence: str) -> Reading:
        with switches[bug]():
            return one_by_one(model, split(sentence)[0])

    @functools.lru_cache(maxsize=64)
    @torch.no_grad()
    def judged(bug: str, check: str, sentence: str):
        with switches[bug]():
            return CHECKS[check](model, split(sentence)[0], reading(bug, sentence))

    def mean_weights(bug: str, sentence: str):
        """(T, T): the weights of the last layer while the text is read one token at a time, averaged over heads."""
        seen = reading(bug, sentence).seen
        weights = torch.zeros(len(seen), len(seen))  # (T, T)
        for i, one in enumerate(seen):
            weights[i, : i + 1] = one[last][0, :, 0].mean(dim=0)  # (H, i + 1) -> (i + 1,)
        return weights.numpy()

    def build(fig):
        fig.set_layout_engine("none")
        picture, listed = TokenMap(fig), CheckList(fig, list(CHECKS))

        def update(bug, check, sentence):
            _, tokens, note = split(sentence)
            passes, words = judged(bug, check, sentence)
            picture.set(mean_weights(bug, sentence), tokens)
            on = bug != "none"
            listed.set(check, passes, words, on)
            noticed = ("passes" if passes else "fails") + (", so it does not see the bug" if passes and on else "")
            return f"Bug: {bug}; the check “{check}” {noticed}: {words}.{note}"

        return update

    controls = {
        "bug": widgets.ToggleButtons(options=list(switches), value="none", description="bug"),
        "check": widgets.ToggleButtons(options=list(CHECKS), value=next(iter(CHECKS)), description="check"),
        "sentence": widgets.Text(text, description="your sentence"),
    }
    return Explorer(build, controls, title="Which check sees which bug?", name="break_it", figsize=(8, 4.4))
