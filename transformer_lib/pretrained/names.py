"""What each file format calls the tensors of this library: one table per format, read in both directions.

The tables name layers; `.weight` or `.bias` follows. `{}` is the number of a block.
"""

from __future__ import annotations

import re

LLAMA = {
    "embedding": "model.embed_tokens",
    "blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attention.w_q": "model.layers.{}.self_attn.q_proj",
    "blocks.{}.attention.w_k": "model.layers.{}.self_attn.k_proj",
    "blocks.{}.attention.w_v": "model.layers.{}.self_attn.v_proj",
    "blocks.{}.attention.w_o": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp.w_1": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.w_3": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.w_2": "model.layers.{}.mlp.down_proj",
    "final_norm": "model.norm",
    "unembedding": "lm_head",
}

# GPT-2 keeps W_Q, W_K and W_V in one matrix, called w_qkv here.
GPT2 = {
    "embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "blocks.{}.attention_norm": "transformer.h.{}.ln_1",
    "blocks.{}.attention.w_qkv": "transformer.h.{}.attn.c_attn",
    "blocks.{}.attention.w_o": "transformer.h.{}.attn.c_proj",
    "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
    "blocks.{}.mlp.w_1": "transformer.h.{}.mlp.c_fc",
    "blocks.{}.mlp.w_2": "transformer.h.{}.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "unembedding": "lm_head",
}

GGUF = {
    "embedding": "token_embd",
    "blocks.{}.attention_norm": "blk.{}.attn_norm",
    "blocks.{}.attention.w_q": "blk.{}.attn_q",
    "blocks.{}.attention.w_k": "blk.{}.attn_k",
    "blocks.{}.attention.w_v": "blk.{}.attn_v",
    "blocks.{}.attention.w_o": "blk.{}.attn_output",
    "blocks.{}.mlp_norm": "blk.{}.ffn_norm",
    "blocks.{}.mlp.w_1": "blk.{}.ffn_gate",
    "blocks.{}.mlp.w_3": "blk.{}.ffn_up",
    "blocks.{}.mlp.w_2": "blk.{}.ffn_down",
    "final_norm": "output_norm",
    "unembedding": "output",
}


def name_in_file(table: dict[str, str], name: str) -> str:
    """ "blocks.3.mlp.w_1.weight" -> "model.layers.3.mlp.gate_proj.weight", say."""
    return translate(table, re.sub(r"w_[qkv]\b", "w_qkv", name) if table is GPT2 else name) or name


def name_here(table: dict[str, str], name: str) -> str | None:
    """The other way; None for a tensor that the table does not know."""
    return translate({theirs: ours for ours, theirs in table.items()}, name)


def translate(table: dict[str, str], name: str) -> str | None:
    layer, _, kind = name.rpartition(".")
    number = re.search(r"(?<=\.)\d+(?=\.)", layer)
    key = layer if number is None else layer[: number.start()] + "{}" + layer[number.end() :]
    if key not in table or kind not in ("weight", "bias"):
        return None
    return f"{table[key].format('' if number is None else number[0])}.{kind}"
