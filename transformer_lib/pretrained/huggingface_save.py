"""A model of this library as a folder that the Hugging Face libraries load, with equal logits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.model import Transformer
from transformer_lib.pretrained.names import GPT2, LLAMA, name_in_file
from transformer_lib.pretrained.saving import check_describable, replacing_files
from transformer_lib.tokenizer import ByteLevelTokenizer

SHARED = {"norm_position": "pre", "causal": True, "embedding_scale": False, "scale_scores": True, "residual": True}


def save_huggingface(model: Transformer, tokenizer, folder: str | os.PathLike) -> None:
    """Write config.json, model.safetensors and the tokenizer's file into `folder`; each file whole or not at all.

    RoPE, RMSNorm and SwiGLU make Llama's layout; learned positions, LayerNorm, GELU (or ReLU) and biases GPT-2's.
    tokenizer: None leaves it out. Raises ValueError, before anything is written, for a config that fits neither.
    """
    cfg = model.cfg
    gpt2 = cfg.positions == "learned"
    settings = gpt2_settings(cfg) if gpt2 else llama_settings(cfg)
    settings |= {"vocab_size": cfg.vocab_size, "tie_word_embeddings": cfg.tie_embeddings}
    settings["dtype"] = settings["torch_dtype"] = str(model.embedding.weight.dtype).removeprefix("torch.")
    tensors = dict(model.named_parameters())  # a tied unembedding is not listed twice
    tensors = gpt2_tensors(tensors) if gpt2 else {name_in_file(LLAMA, name): w for name, w in tensors.items()}
    vocabulary, other = "tokenizer.model", "tokenizer.json"
    if isinstance(tokenizer, ByteLevelTokenizer):
        vocabulary, other = other, vocabulary
    with replacing_files(folder) as part:
        if tokenizer is not None:
            tokenizer.save(part / vocabulary)
            settings |= {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
        (part / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    if tokenizer is not None:
        Path(folder, other).unlink(missing_ok=True)  # an earlier model's, which would be read in place of this one


def llama_settings(cfg: TransformerConfig) -> dict:
    check_describable(cfg, "a Llama folder", positions="rope", norm="rmsnorm", activation="swiglu", **SHARED)
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": cfg.d_model,
        "num_hidden_layers": cfg.n_layers, "num_attention_heads": cfg.n_heads, "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.d_k, "intermediate_size": cfg.ff_width, "max_position_embeddings": cfg.max_seq_len,
        "rms_norm_eps": cfg.norm_eps, "rope_theta": cfg.rope_theta, "attention_bias": cfg.bias, "mlp_bias": cfg.bias,
    }  # fmt: skip
    if cfg.rope_scaling is not None:
        factor, low, high, original = cfg.rope_scaling
        settings["rope_scaling"] = {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }  # fmt: skip
    return settings


def gpt2_settings(cfg: TransformerConfig) -> dict:
    of_heads = {"kv_heads": cfg.n_heads, "d_k": cfg.d_model / cfg.n_heads}
    check_describable(cfg, "a GPT-2 folder", norm="layernorm", bias=True, **of_heads, **SHARED)
    if cfg.activation == "swiglu":
        raise ValueError("a GPT-2 folder cannot say activation='swiglu'; it means 'gelu' or 'relu'.")
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": cfg.d_model, "n_layer": cfg.n_layers,
        "n_head": cfg.n_heads, "n_inner": cfg.ff_width, "n_positions": cfg.max_seq_len,
        "activation_function": "gelu_new" if cfg.activation == "gelu" else "relu", "layer_norm_epsilon": cfg.norm_eps,
    }  # fmt: skip


def gpt2_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """GPT-2 stores the transposes of its blocks' matrices, and W_Q, W_K, W_V side by side."""
    found = {}
    for name, tensor in tensors.items():
        if ".w_k." in name or ".w_v." in name:
            continue
        if ".w_q." in name:
            tensor = torch.cat([tensors[name.replace("w_q", letter)] for letter in ("w_q", "w_k", "w_v")])  # (3 d, …)
        if name.startswith("blocks.") and tensor.dim() == 2:
            tensor = tensor.T  # (out, in) -> (in, out)
        found[name_in_file(GPT2, name)] = tensor
    return found
