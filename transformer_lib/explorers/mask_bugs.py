"""Break it, notebook 05: seven checks of a causal model, and which of them see a mask of −10,000."""

import torch
import torch.nn.functional as F

from transformer_lib.attention import causal_mask
from transformer_lib.explorers.base import Explorer
from transformer_lib.explorers.scaling import break_it, rows_sum_to_one, same_as_torch
from transformer_lib.recording import edit, record

LARGE = 100_000


def future_weights_are_zero(model, ids):
    with record(model) as seen:
        model(ids)
    hidden = ~causal_mask(ids.shape[1])
    most = max(float(seen[f"blocks.{i}.attention.weights"][..., hidden].max()) for i in range(model.cfg.n_layers))
    return most == 0, f"largest weight on a later token: {most:g}"


def largest_move(model, ids, factor: float = 1.0) -> float:
    """How much the earlier logits move, at most, when the last token changes, with all scores × factor."""
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % model.cfg.vocab_size
    names = [f"blocks.{i}.attention.scores" for i in range(model.cfg.n_layers)]
    with edit(model, {name: lambda scores: factor * scores for name in names}):
        return float((model(other) - model(ids))[:, :-1].abs().max())


def another_last_token(model, ids):
    off = largest_move(model, ids)
    return off == 0, f"earlier logits move by {off:g}"


def another_last_token_large_scores(model, ids):
    off = max(largest_move(model, ids, factor) for factor in (LARGE, -LARGE))
    return off == 0, f"scores × ±{LARGE:,}: earlier logits move by {off:.2g}"


def one_pass_is_many(model, ids):
    alone = torch.stack([model(ids[:, : t + 1])[:, -1] for t in range(ids.shape[1])], dim=1)  # (B, T, V)
    off = float((model(ids) - alone).abs().max())
    return off < 1e-3, f"one pass against a pass per prefix: difference {off:.0e}"


def padding_changes_nothing(model, ids):
    padded, keep = F.pad(ids, (0, 3)), F.pad(torch.ones_like(ids, dtype=torch.bool), (0, 3))  # (B, T + 3)
    off = float((model(padded, padding_mask=keep)[:, : ids.shape[1]] - model(ids)).abs().max())
    return off < 1e-3, f"three padding tokens move real logits by {off:.0e}"


CHECKS = {
    "rows sum to one": rows_sum_to_one,
    "no weight on later tokens": future_weights_are_zero,
    "another last token": another_last_token,
    "another last token, large scores": another_last_token_large_scores,
    "one pass = a pass per prefix": one_pass_is_many,
    "padding changes nothing": padding_changes_nothing,
    "= torch": same_as_torch,
}


def break_the_mask(model, tokenizer, text: str, bug) -> Explorer:
    """Turn −1e4 on and look for the check that notices. bug: `lessons.bugs.mask_with_minus_1e4`."""
    return break_it(model, tokenizer, text, bug, CHECKS)
