"""The sizes that are measured, and the same shapes in the libraries that people would use instead.

Each peer is a module from ids (B, T) to logits (B, T, V), of as many parameters as ours up to the peer's own habits
(noted where they differ), float32, without dropout.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.model import Transformer

INSTALL = "not installed: `make bench`, or pip install -r tests/bench.txt"


@dataclass(frozen=True)
class Size:
    """A model's shape, and the batches that it is trained on."""

    config: TransformerConfig
    context: int = 0
    batch_size: int = 0

    def gpt2(self) -> TransformerConfig:
        """The same width and depth in GPT-2's shape: LayerNorm, GELU, learned positions, biases."""
        return self.config.replace(positions="learned", norm="layernorm", activation="gelu", bias=True)


def shape(vocab_size: int, d_model: int, n_layers: int, n_heads: int, max_seq_len: int = 4096) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, n_heads=n_heads, max_seq_len=max_seq_len
    )


SIZES = {
    "S": Size(shape(512, 128, 4, 4), context=128, batch_size=32),
    "M": Size(shape(2048, 256, 6, 8), context=256, batch_size=16),
    "L": Size(shape(32_000, 768, 12, 12)),  # decoding only
}


def ours(cfg: TransformerConfig, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(cfg)


class Logits(nn.Module):
    """A transformers model as a module from ids to logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False).logits  # (B, T, V)


def transformers_llama(cfg: TransformerConfig) -> nn.Module:
    transformers = quietly_imported("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=cfg.vocab_size,
            hidden_size=cfg.d_model,
            intermediate_size=cfg.ff_width,
            num_hidden_layers=cfg.n_layers,
            num_attention_heads=cfg.n_heads,
            num_key_value_heads=cfg.kv_heads,
            max_position_embeddings=cfg.max_seq_len,
            tie_word_embeddings=cfg.tie_embeddings,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def transformers_gpt2(cfg: TransformerConfig) -> nn.Module:
    transformers = quietly_imported("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=cfg.vocab_size,
            n_embd=cfg.d_model,
            n_layer=cfg.n_layers,
            n_head=cfg.n_heads,
            n_positions=cfg.max_seq_len,
            tie_word_embeddings=cfg.tie_embeddings,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def x_transformers(cfg: TransformerConfig) -> nn.Module:
    """Llama's shape where cfg has it, else GPT-2's; the MLP 8/3 or 4 times as wide as the stream."""
    x = quietly_imported("x_transformers")
    llama = cfg.positions == "rope"
    kind = {"rotary_pos_emb": True, "ff_swish": True, "ff_glu": True, "use_rmsnorm": True} if llama else {}
    return x.TransformerWrapper(
        num_tokens=cfg.vocab_size,
        max_seq_len=cfg.max_seq_len,
        use_abs_pos_emb=not llama,
        attn_layers=x.Decoder(
            dim=cfg.d_model,
            depth=cfg.n_layers,
            heads=cfg.n_heads,
            attn_dim_head=cfg.d_k,
            attn_flash=True,
            ff_mult=cfg.ff_width / cfg.d_model,
            ff_no_bias=llama,
            **kind,
        ),
    )


class TorchEncoder(nn.Module):
    """GPT-2's shape out of torch's own layers."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.d_model)
        self.position_embedding = nn.Embedding(cfg.max_seq_len, cfg.d_model)
        layer = nn.TransformerEncoderLayer(
            cfg.d_model, cfg.n_heads, cfg.ff_width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(cfg.d_model)
        self.encoder = nn.TransformerEncoder(layer, cfg.n_layers, norm, enable_nested_tensor=False)
        self.unembedding = nn.Linear(cfg.d_model, cfg.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position_embedding.weight[: ids.shape[1]]  # (B, T, d_model)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])  # (T, T)
        return self.unembedding(self.encoder(x, mask=mask, is_causal=True))  # (B, T, V)


# What each shape is compared with: name -> a function from a config to a module.
PEERS: dict[str, dict[str, Callable[[TransformerConfig], nn.Module]]] = {
    "Llama-shaped": {
        "transformers Llama": lambda cfg: Logits(transformers_llama(cfg)),
        "x-transformers": x_transformers,
    },
    "GPT-2-shaped": {
        "torch.nn.TransformerEncoder": TorchEncoder,
        "transformers GPT-2": lambda cfg: Logits(transformers_gpt2(cfg)),
        "x-transformers": x_transformers,
    },
}


def made(make: Callable[[TransformerConfig], nn.Module], cfg: TransformerConfig) -> tuple[nn.Module | None, str]:
    """(the peer, "") or (None, how to get it)."""
    try:
        return make(cfg), ""
    except ImportError:
        return None, INSTALL


def quietly_imported(name: str):
    module = importlib.import_module(name)
    logging.getLogger(name).setLevel(logging.ERROR)
    return module
