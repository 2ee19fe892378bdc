"""The KV cache: keys and values of earlier positions never change under the causal mask, so keep them.

The cache owns the position: a model asks it how many tokens came before, and cannot get this wrong. It is for
inference: no gradient flows through what it stores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_lib.checks import check_whole
from transformer_lib.config import TransformerConfig


class KVCache:
    """Room for the keys and values of `max_len` tokens of `batch_size` sequences, at every layer.

    cfg: the model's config (its layers, key/value heads and head width decide the size).
    dtype, device: those of the model. `length`: tokens stored so far. `nbytes`: bytes of the whole capacity.
    Raises ValueError for a capacity that is below 1 or above cfg.max_seq_len, and, before anything is written, for a
    chunk that does not fit.
    """

    def __init__(self, cfg: TransformerConfig, batch_size: int, max_len: int, dtype=torch.float32, device=None):
        for name, value in (("batch_size", batch_size), ("max_len", max_len)):
            check_whole(name, value)
        if max_len > cfg.max_seq_len:
            raise ValueError(
                f"a cache of max_len={max_len} is longer than the model's max_seq_len={cfg.max_seq_len}; "
                f"ask for at most {cfg.max_seq_len}."
            )
        self.batch_size, self.max_len = batch_size, max_len
        self.made_for = cfg.n_layers, cfg.kv_heads, cfg.d_k, dtype
        self.keep = torch.ones(batch_size, max_len, dtype=torch.bool, device=device)  # (B, N), False = padding
        self.allocate(cfg, dtype, device)
        self.reset()

    def allocate(self, cfg: TransformerConfig, dtype, device) -> None:
        """Make all the room at once. (The caches of `relatives` store something else, and replace this method.)"""
        shape = (cfg.n_layers, self.batch_size, cfg.kv_heads, self.max_len, cfg.d_k)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, H_kv, N, d_k)
        self.values = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, H_kv, N, d_k)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values at full capacity: 2 · L · B · H_kv · max_len · d_k · bytes per number."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def real_tokens(self) -> Tensor:
        """(B,) int64: how many of the stored tokens of each row are not padding."""
        return self.keep[:, : self.length].sum(dim=1)

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self.length = 0
        self.has_padding = False
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys and values of an encoder's output
        self.source: Tensor | None = None  # (B, S): the ids that `cross` was computed from, −1 where padding

    def check_model(self, cfg: TransformerConfig, dtype: torch.dtype) -> None:
        """Refuse a model whose keys and values have another shape or dtype."""
        wanted = cfg.n_layers, cfg.kv_heads, cfg.d_k, dtype
        if wanted != self.made_for:
            raise ValueError(
                f"this cache was made for another model: its layers, key/value heads, head width and dtype are "
                f"{self.made_for}, the model's {wanted}; use model.new_cache(batch_size, max_len)."
            )

    def reserve(self, batch_size: int, new: int, keep: Tensor | None) -> None:
        """Called before a forward: check that `new` tokens of `batch_size` rows fit, and note which are padding."""
        if batch_size != self.batch_size:
            raise ValueError(f"this cache was made for a batch of {self.batch_size} rows; got {batch_size} rows.")
        if self.length + new > self.max_len:
            raise ValueError(
                f"the cache holds {self.length} of max_len={self.max_len} tokens, and {new} more do not fit; "
                f"make it larger, or call reset()."
            )
        self.keep[:, self.length : self.length + new] = True if keep is None else keep
        self.has_padding = self.has_padding or (keep is not None and not bool(keep.all()))

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of one layer behind the stored ones; returns all of them, without copying.

        k, v: (B, H_kv, T, d_k); returns views (B, H_kv, length + T, d_k). The length moves in `advance`, when every
        layer has written.
        """
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k.detach()
        self.values[layer, :, :, self.length : end] = v.detach()
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, new: int) -> None:
        """Count `new` tokens as stored; called once per forward, when the last layer is done."""
        self.length += new
