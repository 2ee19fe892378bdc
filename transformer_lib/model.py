"""The Transformer: blocks stacked on a residual stream.

`Transformer` is a stack of one kind of block: decoder-only with cfg.causal, encoder-only without. `EncoderDecoder` is
the model of 2017. Both return logits, float32, one per vocabulary entry at each position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transformer_lib.accounting import weight_bytes
from transformer_lib.attention import MultiHeadAttention, causal_mask, visible_pairs
from transformer_lib.checks import check_ids, check_keep, check_memory
from transformer_lib.config import TransformerConfig
from transformer_lib.kv_cache import KVCache
from transformer_lib.mlp import make_mlp
from transformer_lib.norms import make_norm
from transformer_lib.positions import LearnedPositions, alibi, rotation, sinusoids
from transformer_lib.taps import Tapped


class Block(Tapped):
    """Attention, then (in the decoder of 2017) attention over the encoder's output, then an MLP.

    Each adds to the stream: x + sublayer(norm(x)) with pre-norm, norm(x + sublayer(x)) with post-norm (2017).
    """

    def __init__(self, cfg: TransformerConfig, cross: bool = False):
        super().__init__()
        self.pre_norm, self.residual = cfg.norm_position == "pre", cfg.residual
        self.attention_norm, self.attention = make_norm(cfg), MultiHeadAttention(cfg)
        self.cross_attention_norm = make_norm(cfg) if cross else None
        self.cross_attention = MultiHeadAttention(cfg, cross=True) if cross else None
        self.mlp_norm, self.mlp = make_norm(cfg), make_mlp(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def taps(self) -> tuple[str, ...]:
        cross = () if self.cross_attention is None else ("cross_attention.norm",)
        return ("attention.norm", *cross, "mlp.norm", "stream")

    def forward(
        self, x: Tensor, *, rotation=None, mask=None, causal=False, cache=None, layer=0, memory=None, memory_mask=None
    ):
        """x: (B, T, d_model), the stream; returns it with this block's updates added, (B, T, d_model).

        memory: (B, S, d_model), an encoder's output; the other arguments are those of `MultiHeadAttention`.
        """

        def attend(y: Tensor) -> Tensor:
            return self.attention(y, rotation=rotation, mask=mask, causal=causal, cache=cache, layer=layer)

        def cross_attend(y: Tensor) -> Tensor:
            return self.cross_attention(y, memory=memory, mask=memory_mask, cache=cache, layer=layer)

        x = self.sublayer("attention", self.attention_norm, attend, x)
        if self.cross_attention is not None:
            x = self.sublayer("cross_attention", self.cross_attention_norm, cross_attend, x)
        x = self.sublayer("mlp", self.mlp_norm, self.mlp, x)
        return self.tap("stream", x)

    def sublayer(self, name: str, norm: nn.Module, run, x: Tensor) -> Tensor:
        """The stream after one sublayer, with the norm where the config puts it."""
        if self.pre_norm:
            return self.add(x, run(self.tap(f"{name}.norm", norm(x))))
        return self.tap(f"{name}.norm", norm(self.add(x, run(x))))

    def add(self, x: Tensor, update: Tensor) -> Tensor:
        """A block never replaces its input: it adds to it (without cfg.residual, it does, for lesson 06)."""
        update = self.dropout(update)
        return x + update if self.residual else update


class Model(Tapped):
    """What both kinds of Transformer share: ids become vectors, go through the blocks, and become logits."""

    cache_kind = KVCache  # what `new_cache` makes

    def __init__(self, cfg: TransformerConfig, cross: bool = False):
        super().__init__()
        if type(cfg) is TransformerConfig:  # a relative of it has other weights
            check_memory(weight_bytes(cfg, torch.get_default_dtype().itemsize))
        self.cfg = cfg
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.d_model)
        learned = cfg.positions == "learned"
        self.position_embedding = LearnedPositions(cfg.max_seq_len, cfg.d_model) if learned else None
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg, cross) for _ in range(cfg.n_layers))
        self.final_norm = make_final_norm(cfg)
        self.unembedding = nn.Linear(cfg.d_model, cfg.vocab_size, bias=False)
        if cfg.tie_embeddings:
            self.unembedding.weight = self.embedding.weight  # one storage, not a copy

    @torch.no_grad()
    def initialize(self, std: float = 0.02) -> None:
        """Draw every matrix anew from N(0, std²); biases and norms start neutral (Radford et al., 2019, section 2.3).

        The matrices that write to the stream start smaller by √(number of writes), so that depth does not swell it.
        """
        writers = ("w_o.weight", "w_2.weight")
        writes = sum(name.endswith(writers) for name, _ in self.named_parameters())
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=std / math.sqrt(writes) if name.endswith(writers) else std)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
            else:
                nn.init.ones_(weight)

    def taps(self) -> tuple[str, ...]:
        return ("embedding", *(() if self.final_norm is None else ("final_norm",)), "logits")

    def new_cache(self, batch_size: int, max_len: int) -> KVCache:
        """An empty cache that fits this model: its config, dtype and device."""
        weight = self.embedding.weight
        return self.cache_kind(self.cfg, batch_size, max_len, weight.dtype, weight.device)

    def run(self, ids: Tensor, keep: Tensor | None, cache, causal: bool, last_only: bool, **memory) -> Tensor:
        """ids (B, T) -> logits (B, T, V), float32, or with last_only those of the last position alone, (B, 1, V).

        keep: (B, T) bool, True = a real token; memory: see `Block`.
        """
        positions = token_positions(ids, keep, cache)  # (T,) or (B, T)
        seen = 0  # tokens before these
        if cache is not None:
            seen = cache.length
            if type(cache) is not self.cache_kind:
                raise TypeError(
                    f"{type(self).__name__} needs a {self.cache_kind.__name__}, not a {type(cache).__name__}; "
                    f"use model.new_cache(batch_size, max_len)."
                )
            cache.check_model(self.cfg, self.embedding.weight.dtype)
            cache.reserve(*ids.shape, keep)
            keep = cache.keep[:, : seen + ids.shape[1]] if cache.has_padding else None  # (B, T_k)
        mask, causal = self.visible(ids.shape[1], seen + ids.shape[1], causal, keep, ids.device)
        rotation = self.rotation(positions)
        x = self.tap("embedding", self.embed(ids, positions))  # (B, T, d_model)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation=rotation, mask=mask, causal=causal, cache=cache, layer=layer, **memory)
        if cache is not None:
            cache.advance(ids.shape[1])
        x = x[:, -1:] if last_only else x  # (B, 1, d_model)
        if self.final_norm is not None:
            x = self.tap("final_norm", self.final_norm(x))
        return self.tap("logits", self.unembedding(x).float())  # (B, T, V), or (B, 1, V)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(B, T) ids at positions (T,) or (B, T) -> the stream that enters block 0, (B, T, d_model)."""
        x = self.embedding(ids)  # (B, T, d_model)
        if self.cfg.embedding_scale:
            x = x * math.sqrt(self.cfg.d_model)
        if self.cfg.positions == "sinusoidal":
            x = x + sinusoids(positions, self.cfg.d_model).to(x.dtype)
        elif self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        return self.dropout(x)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """The angles for RoPE, once for all blocks: (T, d_k / 2), or (B, 1, T, d_k / 2) to broadcast over heads."""
        if self.cfg.positions != "rope":
            return None
        positions = positions if positions.dim() == 1 else positions[:, None]  # (T,) or (B, 1, T)
        return rotation(positions, self.cfg.d_k, self.cfg.rope_theta, self.cfg.rope_scaling)

    def visible(self, t_q: int, t_k: int, causal: bool, keep: Tensor | None, device) -> tuple[Tensor | None, bool]:
        """(mask, causal) of `visible_pairs`; with ALiBi, which tells far from near by the scores alone, its numbers."""
        mask, causal = visible_pairs(t_q, t_k, causal, keep, device)
        if self.cfg.positions != "alibi":
            return mask, causal
        bias = alibi(self.cfg.n_heads, t_q, t_k, keep, device).to(self.embedding.weight.dtype)  # (…, H, T_q, T_k)
        mask = causal_mask(t_q, t_k, device) if causal else mask
        return bias if mask is None else bias.masked_fill(~mask, -math.inf), False


def make_final_norm(cfg: TransformerConfig) -> nn.Module | None:
    """Pre-norm never normalises the stream itself, so one norm is left to do; post-norm ends every block with one."""
    return make_norm(cfg) if cfg.norm_position == "pre" else None


def token_positions(ids: Tensor, keep: Tensor | None, cache: KVCache | None = None) -> Tensor:
    """The place of each token, counted from 0 over the real tokens of its row: (T,) without padding, (B, T) with."""
    start = 0 if cache is None else cache.length
    if keep is None and (cache is None or not cache.has_padding):
        return torch.arange(start, start + ids.shape[1], device=ids.device)  # (T,)
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    before = 0 if cache is None else cache.real_tokens[:, None]  # (B, 1)
    return (keep.cumsum(dim=1) - 1 + before).clamp(min=0)  # (B, T)


class Transformer(Model):
    """A stack of blocks between an embedding and an unembedding.

    model(ids): ids (B, T) int64 -> logits (B, T, V) float32.
    padding_mask: (B, T) bool, True = a real token; positions count real tokens, and no real token sees padding.
    cache: a `KVCache`; ids are then the tokens that follow the stored ones, and any chunking gives the same logits.
    last_only: only the logits of the last position, (B, 1, V): all that the next token needs, and with a vocabulary of
    49,152 they save a fifth of a small model's work and 400 MB for a prompt of 2,048 tokens.
    Works under torch.device("meta"), without memory. Raises ValueError or TypeError for ids that cannot be.
    """

    def __init__(self, cfg: TransformerConfig):
        if cfg.n_encoder_layers:
            raise ValueError(
                f"Transformer has no encoder, but the config has n_encoder_layers={cfg.n_encoder_layers}; "
                f"use EncoderDecoder(cfg), or cfg.replace(n_encoder_layers=0)."
            )
        super().__init__(cfg)
        self.initialize()

    def forward(
        self, ids: Tensor, padding_mask: Tensor | None = None, cache: KVCache | None = None, last_only: bool = False
    ) -> Tensor:
        if cache is not None and not self.cfg.causal:
            raise ValueError(
                "a KV cache needs causal=True: without the mask, each new token changes the earlier keys and values."
            )
        check_ids(ids, self.cfg, cache)
        check_keep(padding_mask, ids, "padding_mask")
        return self.run(ids, padding_mask, cache, self.cfg.causal, last_only)


class Encoder(Tapped):
    """A stack of blocks without a mask: every position sees the whole source."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_encoder_layers))
        self.final_norm = make_final_norm(cfg)

    def taps(self) -> tuple[str, ...]:
        return ("embedding", *(() if self.final_norm is None else ("final_norm",)))

    def forward(self, x: Tensor, rotation, mask: Tensor | None) -> Tensor:
        """x: (B, S, d_model), the embedded source; returns (B, S, d_model)."""
        x = self.tap("embedding", x)
        for block in self.blocks:
            x = block(x, rotation=rotation, mask=mask)
        return x if self.final_norm is None else self.tap("final_norm", self.final_norm(x))


class EncoderDecoder(Model):
    """The model of 2017: an encoder reads the source, a causal decoder writes the target and looks at the source.

    model(source, target): (B, S) and (B, T) int64 ids of one shared vocabulary -> logits (B, T, V) float32.
    source_mask, target_mask: (B, S) and (B, T) bool, True = a real token.
    cache: for decoding; the encoder then runs once, when the cache is empty, and the source must stay the same.
    last_only: see `Transformer`.
    """

    def __init__(self, cfg: TransformerConfig):
        if not cfg.n_encoder_layers:
            raise ValueError(
                "EncoderDecoder needs an encoder: set n_encoder_layers to at least 1, or use Transformer(cfg)."
            )
        super().__init__(cfg, cross=True)
        self.encoder = Encoder(cfg)
        self.initialize()

    def forward(
        self, source, target, source_mask=None, target_mask=None, cache: KVCache | None = None, last_only: bool = False
    ) -> Tensor:
        check_ids(source, self.cfg, name="source")
        check_ids(target, self.cfg, cache, name="target")
        check_keep(source_mask, source, "source_mask")
        check_keep(target_mask, target, "target_mask")
        if source.shape[0] != target.shape[0]:
            raise ValueError(
                f"source has {source.shape[0]} rows and target {target.shape[0]}; each source needs its target."
            )
        memory = self.encode(source, source_mask) if cache is None else self.encode_once(source, source_mask, cache)
        memory_mask, _ = visible_pairs(target.shape[1], source.shape[1], False, source_mask)
        return self.run(target, target_mask, cache, True, last_only, memory=memory, memory_mask=memory_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        """(B, S) -> what the decoder reads, (B, S, d_model)."""
        positions = token_positions(source, source_mask)
        mask, _ = self.visible(source.shape[1], source.shape[1], False, source_mask, source.device)
        return self.encoder(self.embed(source, positions), self.rotation(positions), mask)

    def encode_once(self, source: Tensor, source_mask: Tensor | None, cache: KVCache) -> Tensor | None:
        """The encoder's output for an empty cache; None later, when the cache holds the keys and values made of it."""
        real = source.clone() if source_mask is None else source.masked_fill(~source_mask, -1)  # (B, S)
        if cache.length == 0:
            cache.cross.clear()
            cache.source = real
            return self.encode(source, source_mask)
        if not torch.equal(real, cache.source):
            raise ValueError("the cache was filled for another source; call cache.reset() before a new one.")
        return None
