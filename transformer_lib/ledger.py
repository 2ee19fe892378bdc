"""Who wrote what into the residual stream, and what the stream would predict if it ended here.

    book = ledger(model, ids)
    book.names                       # ["embedding", "L0 head 0", …, "L0 MLP", "L1 head 0", …]
    book.writes                      # (N, B, T, d_model); their sum is the stream that enters the final norm
    unembed(model, book.streams[1])  # (B, T, V): the logit lens (nostalgebraist, 2020) after block 0
    credits(model, book, token)      # (N, B, T): each writer's part in the logit of `token`

All of it holds for pre-norm alone: post-norm rescales everything that was written before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib.model import Transformer
from transformer_lib.norms import LayerNorm
from transformer_lib.recording import record


class Ledger(NamedTuple):
    """What each part of a model wrote, and the running sum."""

    names: list[str]  # N writers: the embedding, then of each block its heads and its MLP
    layers: list[int]  # the writer's block; −1 for the embedding
    writes: Tensor  # (N, B, T, d_model)
    streams: Tensor  # (L + 1, B, T, d_model): the stream that enters block 0, and the stream after each block


@torch.no_grad()
def ledger(model: Transformer, ids: Tensor) -> Ledger:
    """Run the model on ids (B, T) and write down every sublayer's update, attention's head by head.

    Raises ValueError for post-norm and for a model without the residual connection: there is no sum to take apart.
    """
    cfg = model.cfg
    if cfg.norm_position != "pre" or not cfg.residual:
        raise ValueError(
            "a ledger needs pre-norm and the residual connection, for only then is the stream a sum of writes; this "
            f"model has norm_position={cfg.norm_position!r} and residual={cfg.residual}."
        )
    with record(model) as seen:
        model(ids)
    names, layers, writes = ["embedding"], [-1], [seen["embedding"]]
    for layer, block in enumerate(model.blocks):
        by_head = head_writes(block.attention, seen[f"blocks.{layer}.attention.heads"])  # (H, B, T, d_model)
        names += [f"L{layer} head {head}" for head in range(cfg.n_heads)] + [f"L{layer} MLP"]
        layers += [layer] * (cfg.n_heads + 1)
        writes += [*by_head, seen[f"blocks.{layer}.mlp.output"]]
        if block.attention.w_o.bias is not None:
            names.insert(-1, f"L{layer} bias of W_O")
            layers.append(layer)
            writes.insert(-1, block.attention.w_o.bias.expand_as(writes[-1]))
    streams = [seen["embedding"], *(seen[f"blocks.{layer}.stream"] for layer in range(cfg.n_layers))]
    return Ledger(names, layers, torch.stack(writes), torch.stack(streams))


def head_writes(attention, heads: Tensor) -> Tensor:
    """What each head adds to the stream: heads (B, T, H, d_k) times its own columns of W_O -> (H, B, T, d_model)."""
    columns = attention.w_o.weight.unflatten(1, (attention.n_heads, attention.d_k))  # (d_model, H, d_k)
    return torch.einsum("bthk,dhk->hbtd", heads, columns)


@torch.no_grad()
def unembed(model: Transformer, stream: Tensor) -> Tensor:
    """The logit lens: (…, d_model) -> (…, V), the logits if the blocks that follow wrote nothing."""
    return model.unembedding(stream if model.final_norm is None else model.final_norm(stream)).float()


@torch.no_grad()
def credits(model: Transformer, book: Ledger, token: int) -> Tensor:
    """How much each writer adds to the logit of one token above the mean logit of all: (N, B, T).

    The final norm divides each position by one number; with that number kept, the logit is a sum over the writers.
    A LayerNorm's shift belongs to nobody and is left out.
    """
    norm, table = model.final_norm, model.unembedding.weight
    direction = norm.weight * (table[token] - table.mean(dim=0))  # (d_model,)
    writes, top = book.writes, book.streams[-1]
    if isinstance(norm, LayerNorm):
        writes, top = (x - x.mean(dim=-1, keepdim=True) for x in (writes, top))
    size = torch.sqrt(top.pow(2).mean(dim=-1) + norm.eps)  # (B, T)
    return writes @ direction / size  # (N, B, T)
