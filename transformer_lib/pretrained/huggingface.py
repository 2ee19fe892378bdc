"""Folders as the Hugging Face libraries write them: config.json, *.safetensors, a tokenizer.

Two layouts are read: Llama's and GPT-2's. Whatever config.json asks for and these layers do not have is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from transformer_lib.config import TransformerConfig
from transformer_lib.pretrained.names import GPT2, LLAMA, name_here, name_in_file
from transformer_lib.pretrained.stored import Checked, Stored, check, make_config, zero_biases

FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # tables that older versions stored: no weights


def check_huggingface(folder: Path) -> Checked:
    """The model in a folder. Raises ValueError for anything that this library could not compute exactly."""
    settings = read_json(folder / "config.json")
    named = settings.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else settings.get("model_type")
    if architecture in ("LlamaForCausalLM", "llama"):
        cfg, table = llama_config(folder / "config.json", settings), LLAMA
    elif architecture in ("GPT2LMHeadModel", "gpt2"):
        cfg, table = gpt2_config(folder / "config.json", settings), GPT2
    else:
        raise ValueError(
            f"{folder / 'config.json'}: the architecture is {architecture!r}; LlamaForCausalLM and GPT2LMHeadModel "
            f"can be read."
        )
    tensors = named_here(stored_tensors(folder), table)
    if cfg.tie_embeddings:
        tensors.pop("unembedding.weight", None)  # a copy of the embedding, if it is there
    if cfg.bias and table is LLAMA:
        for part, key in ((".attention.", "attention_bias"), (".mlp.", "mlp_bias")):
            if not settings.get(key):
                tensors |= zero_biases(tensors, part)
    return check(cfg, tensors, folder, lambda name: name_in_file(table, name))


def read_json(file: Path) -> dict:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{file.parent} has no {file.name}, so it is no model folder in Hugging Face's form."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as JSON ({error}).") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{file} must hold a JSON object; it holds a {type(settings).__name__}.")
    return settings


def llama_config(file: Path, settings: dict) -> TransformerConfig:
    """Llama's config.json, of transformers 4 (rope_scaling) or 5 (rope_parameters)."""
    expect(file, settings, hidden_act="silu", quantization_config=None, partial_rotary_factor=1.0)
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{file}: rope_scaling must be an object or null; got {rope!r}.")
    expect(file, rope, partial_rotary_factor=1.0)
    kind, scaling = rope.get("rope_type", rope.get("type", "default")), None
    if kind == "llama3":
        numbers = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = tuple(required(file, rope, number) for number in numbers)
    elif kind != "default":
        raise ValueError(f"{file}: RoPE scaling of type {kind!r}; the layers have 'default' and 'llama3'.")
    d_model, heads = required(file, settings, "hidden_size"), required(file, settings, "num_attention_heads")
    head_dim = settings.get("head_dim")
    return make_config(
        file, vocab_size=required(file, settings, "vocab_size"), d_model=d_model, n_heads=heads,
        n_layers=required(file, settings, "num_hidden_layers"), n_kv_heads=settings.get("num_key_value_heads"),
        head_dim=None if is_quotient(head_dim, d_model, heads) else head_dim,
        d_ff=required(file, settings, "intermediate_size"),
        max_seq_len=required(file, settings, "max_position_embeddings"), norm_eps=settings.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", settings.get("rope_theta", 10_000.0)), rope_scaling=scaling,
        tie_embeddings=settings.get("tie_word_embeddings", False),
        bias=settings.get("attention_bias", False) or settings.get("mlp_bias", False),
    )  # fmt: skip


def gpt2_config(file: Path, settings: dict) -> TransformerConfig:
    expect(file, settings, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    expect(file, settings, quantization_config=None)
    activations = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}
    activation = settings.get("activation_function", "gelu_new")
    if activation not in activations:
        raise ValueError(f"{file}: activation_function={activation!r}; the layers have {', '.join(activations)}.")
    return make_config(
        file, vocab_size=required(file, settings, "vocab_size"), d_model=required(file, settings, "n_embd"),
        n_layers=required(file, settings, "n_layer"), n_heads=required(file, settings, "n_head"),
        d_ff=settings.get("n_inner"), max_seq_len=required(file, settings, "n_positions"), positions="learned",
        norm="layernorm", norm_eps=settings.get("layer_norm_epsilon", 1e-5), activation=activations[activation],
        bias=True, tie_embeddings=settings.get("tie_word_embeddings", True),
    )  # fmt: skip


def required(file: Path, settings: dict, key: str):
    if key not in settings:
        raise ValueError(f"{file} does not say {key}.")
    return settings[key]


def expect(file: Path, settings: dict, **known) -> None:
    """Refuse settings that change what is computed and that these layers do not have."""
    for key, value in known.items():
        if settings.get(key) not in (None, value):
            raise ValueError(f"{file}: {key} is {settings[key]!r}; these layers have only {value!r}.")


def is_quotient(head_dim, d_model, heads) -> bool:
    return all(isinstance(number, int) for number in (head_dim, d_model, heads)) and head_dim * heads == d_model


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder's safetensors, by the name it has there; only headers are read."""
    if (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    elif (folder / "model.safetensors.index.json").exists():
        index = folder / "model.safetensors.index.json"
        shards = required(index, read_json(index), "weight_map")
        names = sorted(set(shards.values())) if isinstance(shards, dict) else []
        if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise ValueError(f"{index}: weight_map must give the name of a file in this folder for each tensor.")
        files = [folder / name for name in names]
    else:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
        hint = f"; {pickled[0]} is a pickle, which could run any code and is never opened" if pickled else ""
        raise ValueError(f"{folder} has no model.safetensors{hint}.")
    tensors = {}
    for file in files:
        tensors |= tensors_of(file)
    return tensors


def tensors_of(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file."""
    tensors = {}
    try:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                part = opened.get_slice(name)
                if part.get_dtype() not in FLOATS:
                    raise ValueError(
                        f"{file}: tensor {name} is stored as {part.get_dtype()}; {', '.join(FLOATS)} can be read."
                    )
                tensors[name] = Stored(file, name, tuple(part.get_shape()), lambda name=name: read_tensor(file, name))
    except FileNotFoundError:
        raise ValueError(f"{file.parent} is incomplete: {file.name} is missing.") from None
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is cut short or no safetensors file ({error}).") from None
    return tensors


def read_tensor(file: Path, name: str) -> Tensor:
    """Opened anew for each tensor, so that the pages mapped for the last one are let go."""
    with safe_open(file, "pt") as opened:
        return opened.get_tensor(name)


def named_here(found: dict[str, Stored], table: dict[str, str]) -> dict[str, Stored]:
    """The same tensors under this library's names and in its shapes."""
    tensors = {}
    for name, stored in found.items():
        if name.endswith(BUFFERS):
            continue
        if table is GPT2 and not name.startswith(("transformer.", "lm_head.")):
            name = f"transformer.{name}"
        ours = name_here(table, name)
        if ours is None:
            raise ValueError(f"{stored.file}: tensor {stored.name} of shape {stored.shape} belongs to no layer here.")
        tensors |= gpt2_parts(ours, stored) if table is GPT2 else {ours: stored}
    return tensors


def gpt2_parts(name: str, stored: Stored) -> dict[str, Stored]:
    """GPT-2 stores the transposes of its blocks' matrices, and W_Q, W_K, W_V side by side."""
    if name.startswith("blocks.") and len(stored.shape) == 2:
        stored = stored.then(stored.shape[::-1], lambda w: w.T)  # (in, out) -> (out, in)
    if ".w_qkv." not in name:
        return {name: stored}
    third = stored.shape[0] // 3
    if stored.shape[0] != 3 * third:
        raise ValueError(f"{stored.file}: tensor {stored.name} has {stored.shape[0]} columns, which 3 does not divide.")
    return {
        name.replace("w_qkv", letter): stored.then(
            (third, *stored.shape[1:]), lambda w, i=i: w[i * third : (i + 1) * third]
        )
        for i, letter in enumerate(("w_q", "w_k", "w_v"))
    }
