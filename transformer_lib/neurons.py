"""The MLP as a memory: what each hidden neuron answers to, and what it writes (Geva et al., 2021).

A neuron is one of the d_ff hidden numbers of an MLP. Its row of W₁ (and W₃) decides on which inputs it is active: its
*key*. Its column of W₂ is what it adds to the stream, times its activation: its *value*. The MLP's output is the sum
over all neurons.

    found = moments(model, tokenizer, fresh_stories(100))
    found.loudness(model, layer)                 # (d_ff,) how much each neuron writes, on average
    found.loudest(layer, neuron, sign, 8)        # where it is most active
    promoted(model, layer)                       # (V, d_ff) which next tokens each neuron's value raises
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib.corpus import Story
from transformer_lib.model import Transformer
from transformer_lib.recording import record
from transformer_lib.tokenizer import Tokenizer
from transformer_lib.toy import encode_stories


class Moments(NamedTuple):
    """Every neuron's activation at N tokens of stories, and where those tokens stand."""

    hidden: Tensor  # (L, N, d_ff)
    row: Tensor  # (N,) which story
    at: Tensor  # (N,) which token of it
    following: Tensor  # (N,) the id that really comes next
    pieces: list[list[str]]  # of each story

    def loudness(self, model: Transformer, layer: int) -> Tensor:
        """(d_ff,): the root mean square length of what each neuron writes."""
        return self.hidden[layer].square().mean(dim=0).sqrt() * values(model, layer).norm(dim=0)

    def loudest(self, layer: int, neuron: int, sign: int, k: int) -> list[tuple[float, int, int]]:
        """[(activation, story, token)] of the k strongest activations with that sign (1 or −1), strongest first."""
        signed = sign * self.hidden[layer, :, neuron]  # (N,)
        best = signed.topk(k).indices
        return [(sign * float(signed[n]), int(self.row[n]), int(self.at[n])) for n in best]


@torch.no_grad()
def moments(model: Transformer, tokenizer: Tokenizer, stories: list[Story]) -> Moments:
    """Run the stories, each with the newline before it, and keep every hidden neuron at every token."""
    ids, counts = encode_stories(tokenizer, stories)  # (B, T), (B, T)
    row, at = counts[:, 1:].nonzero(as_tuple=True)  # (N,) each: the tokens whose next one is a story's
    with record(model) as seen:
        model(ids[:, :-1])
    layers = range(model.cfg.n_layers)
    hidden = torch.stack([seen[f"blocks.{i}.mlp.hidden"][row, at] for i in layers])  # (L, N, d_ff)
    pieces = [tokenizer.pieces(f"\n{story.text}\n") for story in stories]
    return Moments(hidden, row, at, ids[row, at + 1], pieces)


def values(model: Transformer, layer: int) -> Tensor:
    """(d_model, d_ff): column n is what neuron n adds to the stream when its activation is 1."""
    return model.blocks[layer].mlp.w_2.weight.detach()


def promoted(model: Transformer, layer: int) -> Tensor:
    """(V, d_ff): by how much each neuron's value raises each logit, against the mean logit, at activation 1.

    This is the direct path alone: through the final norm's weights (its division left out) and the unembedding. What
    later layers make of the value is not in it.
    """
    table = model.unembedding.weight.detach()  # (V, d_model)
    scale = 1.0 if model.final_norm is None else model.final_norm.weight.detach()
    return ((table - table.mean(dim=0)) * scale) @ values(model, layer)  # (V, d_ff)


def kept_share(hidden: Tensor, value: Tensor, k: int, same: bool = False) -> float:
    """How much of an MLP's output its k loudest neurons of each token make: 1 − squared rest / squared output.

    hidden: (N, d_ff) activations; value: (d_model, d_ff), the columns of W₂. same: keep the k neurons that are loudest
    over all tokens, the same at each.
    """
    loud = hidden.abs() * value.norm(dim=0)  # (N, d_ff)
    if same:
        loud = loud.square().mean(dim=0).expand_as(loud)
    order = loud.argsort(dim=-1, descending=True)  # (N, d_ff)
    rest = hidden.scatter(1, order[:, :k], 0.0) @ value.T  # (N, d_model): what the other neurons write
    return 1 - float(rest.square().sum() / (hidden @ value.T).square().sum())


def foretold(model: Transformer, found: Moments, layer: int, k: int, most: int = 20) -> tuple[float, float]:
    """How often what really comes next is one of the k tokens that an excited neuron promotes: (share, chance).

    Asked of the `most` loudest neurons, each at its `most` strongest activations of either sign; chance asks the same
    lists about all tokens.
    """
    hidden, raised = found.hidden[layer], promoted(model, layer)
    hits, chance = [], []
    for neuron in found.loudness(model, layer).topk(most).indices.tolist():
        best = hidden[:, neuron].abs().topk(most).indices  # (most,)
        lists = {side: (side * raised[:, neuron]).topk(k).indices for side in (1, -1)}  # (k,) each
        anywhere = {side: float(torch.isin(found.following, ids).float().mean()) for side, ids in lists.items()}
        for n in best.tolist():
            side = 1 if hidden[n, neuron] > 0 else -1
            hits.append(bool(torch.isin(found.following[n], lists[side])))
            chance.append(anywhere[side])
    return sum(hits) / len(hits), sum(chance) / len(chance)
