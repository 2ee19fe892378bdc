"""Generation: prefill reads the prompt in one forward pass, decode then adds one token per step."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_lib.checks import check_flags, check_ids, check_keep, check_whole
from transformer_lib.decoding import checked_copy
from transformer_lib.model import EncoderDecoder, Model
from transformer_lib.values import is_number, is_whole, shown


def next_token_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """softmax(logits / temperature), cut to the top_k likeliest tokens, then to the fewest that reach top_p in sum.

    logits: (…, V); returns (…, V), rows that sum to one. temperature 0 puts everything on the likeliest token.
    top_p: nucleus sampling (Holtzman et al., 2020).
    """
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    below_best = logits - logits.amax(dim=-1, keepdim=True)  # first, so that no temperature makes the best infinite
    probabilities = torch.softmax(below_best / max(temperature, 1e-30), dim=-1)  # (…, V)
    if top_k is None and top_p is None:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)  # (…, V)
    if top_k is not None:
        ordered[..., top_k:] = 0
    if top_p is not None and top_p < 1:  # a float32 sum may reach 1 before its end
        ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        before = ordered.cumsum(dim=-1) - ordered  # what the likelier tokens already sum to
        ordered = ordered.masked_fill(before >= max(top_p, 1e-30), 0)  # a smaller p would be 0 in float32
        # The likeliest token always stays, so that the rows can be brought back to a sum of one.
    kept = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


@torch.no_grad()  # not inference_mode: what it returns may be trained on
def generate(
    model: Model,
    ids: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    padding_mask: Tensor | None = None,
    stop_ids: Collection[int] = (),
    on_token: Callable[[Tensor], None] | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
) -> Tensor:
    """Continue every row of `ids`; returns prompt and continuation, (B, T + new).

    ids: (B, T) int64. Prompts of different lengths are padded on the left, with padding_mask (B, T) bool.
    temperature 0 takes the likeliest token; otherwise a token is drawn, from the top_k or top_p likeliest if given;
    with a seed, the same draws every time. use_cache=False computes the whole sequence anew at each step (lesson 10).
    stop_ids: a row that produced one of them is finished, and repeats it until all rows are.
    on_token: called with the new tokens (B,) at each step, to stream them.
    source, source_mask: (B, S), what an `EncoderDecoder` translates; ids are then the start of the target.
    Raises ValueError when the result would be longer than the model's max_seq_len: nothing is shortened silently.
    """
    check_request(model, ids, padding_mask, max_new_tokens, source, source_mask)
    check_sampling(temperature, top_k, top_p, seed, stop_ids, on_token, use_cache, model.cfg.vocab_size)
    temperature, top_p = float(temperature), None if top_p is None else float(top_p)  # torch knows no fractions
    generator = torch.Generator(ids.device)
    generator.manual_seed(int(seed)) if seed is not None else generator.seed()
    stop = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=ids.device)
    finished = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # (B,)
    end = ids.shape[1]
    out = F.pad(ids, (0, max_new_tokens))  # (B, T + new): room for all, so that no step copies what is there
    was_training = model.training
    model.eval()
    try:
        step = stepper(model, ids, padding_mask, max_new_tokens, use_cache, source, source_mask)
        for end in range(ids.shape[1] + 1, out.shape[1] + 1):
            logits = step(out[:, : end - 1])  # (B, V)
            new = next_token(logits, generator, temperature, top_k, top_p)  # (B,)
            if len(stop):
                new = torch.where(finished, out[:, end - 2], new)
                finished |= torch.isin(new, stop)
            out[:, end - 1] = new
            if on_token is not None:
                on_token(new)
            if len(stop) and bool(finished.all()):
                break
    finally:
        model.train(was_training)
    return out[:, :end]


def stepper(model, ids, padding_mask, max_new_tokens, use_cache, source, source_mask) -> Callable[[Tensor], Tensor]:
    """From all ids so far (B, T) to the next token's logits (B, V); with the cache it runs only the new ones.

    The prompt and the token after it are read by the model; from there on by a `DecodeCopy`, where that pays.
    """
    arguments = {} if source is None else {"source": source, "source_mask": source_mask}
    names = ("target", "target_mask") if isinstance(model, EncoderDecoder) else ("ids", "padding_mask")
    cache = model.new_cache(len(ids), ids.shape[1] + max_new_tokens) if use_cache else None
    copy = None

    def step(so_far: Tensor) -> Tensor:
        nonlocal copy
        if copy is not None:
            cache.reserve(len(so_far), 1, None)
            cache.advance(1)
            return copy.logits(so_far[:, -1], cache)  # (B, V)
        keep = None if padding_mask is None else pad_true(padding_mask, so_far.shape[1])  # (B, T)
        start = 0 if cache is None else cache.length
        chunk = {names[0]: so_far[:, start:], names[1]: None if keep is None else keep[:, start:]}
        logits = model(**chunk, **arguments, cache=cache, last_only=True)[:, -1]  # (B, V)
        if cache is not None and start == ids.shape[1]:
            copy = checked_copy(model, cache, so_far[:, -1], logits, max_new_tokens - 2)
        return logits

    return step


def next_token(logits: Tensor, generator: torch.Generator, temperature, top_k, top_p) -> Tensor:
    """(B, V) -> (B,)."""
    if temperature == 0:
        return logits.argmax(dim=-1)  # (B,)
    probabilities = next_token_probabilities(logits, temperature, top_k, top_p)  # (B, V)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)  # (B,)


def pad_true(keep: Tensor, length: int) -> Tensor:
    """(B, T) -> (B, length): every token after the prompt is real."""
    return F.pad(keep, (0, length - keep.shape[1]), value=True)


def check_request(model, ids, padding_mask, max_new_tokens, source, source_mask) -> None:
    """Refuse, before anything is computed, what the model cannot continue."""
    if not isinstance(model, Model):
        raise TypeError(f"model must be a Transformer or an EncoderDecoder; got {type(model).__name__}.")
    check_ids(ids, model.cfg)
    check_keep(padding_mask, ids, "padding_mask")
    if isinstance(model, EncoderDecoder) != (source is not None) or (source is None and source_mask is not None):
        raise ValueError("source belongs to an EncoderDecoder, and it needs one: generate(model, ids, source=…).")
    if not model.cfg.causal:
        raise ValueError("a model with causal=False predicts no next token; generate needs causal=True.")
    if padding_mask is not None and not bool(padding_mask[:, -1].all()):
        raise ValueError(
            "prompts must be padded on the left: the last column of padding_mask must be True in every row."
        )
    check_whole("max_new_tokens", max_new_tokens)
    if ids.shape[1] + max_new_tokens > model.cfg.max_seq_len:
        room = model.cfg.max_seq_len - ids.shape[1]
        raise ValueError(
            f"a prompt of {ids.shape[1]} tokens and max_new_tokens={shown(max_new_tokens)} are more than "
            f"max_seq_len={model.cfg.max_seq_len}; ask for at most {room} new tokens, or shorten the prompt."
        )


def check_sampling(temperature, top_k, top_p, seed, stop_ids, on_token, use_cache, vocab_size: int) -> None:
    """Refuse settings that cannot be."""
    if not is_number(temperature) or temperature < 0:
        raise ValueError(f"temperature must be a finite number of at least 0; got {shown(temperature)}.")
    if top_k is not None and (not is_whole(top_k) or top_k < 1):
        raise ValueError(f"top_k must be None or a whole number of at least 1; got {shown(top_k)}.")
    if top_p is not None and (not is_number(top_p) or not 0 < top_p <= 1):
        raise ValueError(f"top_p must be None or above 0 and at most 1; got {shown(top_p)}.")
    if seed is not None and (not is_whole(seed) or not 0 <= seed < 2**63):
        raise ValueError(f"seed must be None or a whole number from 0 to 2^63 − 1; got {shown(seed)}.")
    if not is_collection(stop_ids) or not all(is_whole(i) and 0 <= i < vocab_size for i in stop_ids):
        raise ValueError(f"stop_ids must be a list of ids from 0 to {vocab_size - 1}; got {shown(stop_ids)}.")
    if on_token is not None and not callable(on_token):
        raise TypeError(f"on_token must be a function of the new tokens; got {shown(on_token)}.")
    check_flags(use_cache=use_cache)


def is_collection(value) -> bool:
    """Whether it can be gone through; a tensor or array without dimensions only looks like it."""
    return isinstance(value, Collection) and not isinstance(value, str) and getattr(value, "shape", None) != ()
