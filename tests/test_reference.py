"""The same numbers as other people's code with the same random weights: transformers, torch.nn, numpy.

Tolerance: float32 rounding; 2e-5 for values of order 1, scaled by the size of the logits where they are larger.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import build, left_padding, random_ids, small
from torch import nn

from transformer_lib import EncoderDecoder, Transformer, TransformerConfig, record
from transformer_lib.attention import MultiHeadAttention, causal_mask
from transformer_lib.model import Block
from transformer_lib.norms import LayerNorm, RMSNorm
from transformer_lib.positions import interleaved_to_half_split, rotate, rotation, sinusoids

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def shake(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random numbers in every parameter, biases and norms too: nothing is left neutral that might hide a fault."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return module.eval()


# --- transformers ---


def from_llama(theirs) -> dict:
    """transformers' names -> ours."""
    names = {
        "model.embed_tokens": "embedding", "model.norm": "final_norm", "lm_head": "unembedding",
        "model.layers": "blocks", "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
        "self_attn.q_proj": "attention.w_q", "self_attn.k_proj": "attention.w_k", "self_attn.v_proj": "attention.w_v",
        "self_attn.o_proj": "attention.w_o", "mlp.gate_proj": "mlp.w_1", "mlp.up_proj": "mlp.w_3",
        "mlp.down_proj": "mlp.w_2",
    }  # fmt: skip
    ours = {}
    for name, weight in theirs.state_dict().items():
        for theirs_part, our_part in names.items():
            name = name.replace(theirs_part, our_part)
        ours[name] = weight
    return ours


@pytest.mark.parametrize("n_kv_heads", [6, 2, 1], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize("tie", [False, True], ids=["separate", "tied"])
def test_llama(n_kv_heads, tie):
    transformers = pytest.importorskip("transformers")
    cfg = small(n_kv_heads=n_kv_heads, tie_embeddings=tie, rope_theta=5000.0, norm_eps=1e-4)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=29, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=n_kv_heads, head_dim=8, max_position_embeddings=19, rms_norm_eps=1e-4,
            tie_word_embeddings=tie, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    shake(theirs)
    ours = Transformer(cfg).eval()
    ours.load_state_dict(from_llama(theirs))
    assert (ours.unembedding.weight is ours.embedding.weight) == tie
    ids = random_ids(3, 17)
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **CLOSE)
    keep = left_padding([17, 4, 9], 17)
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    padded = theirs(ids, attention_mask=keep.long(), position_ids=positions).logits
    torch.testing.assert_close(ours(ids, padding_mask=keep)[keep], padded[keep], **CLOSE)
    generated = theirs.generate(ids[:, :5], max_new_tokens=14, do_sample=False, pad_token_id=0)
    from transformer_lib import generate

    assert torch.equal(generate(ours, ids[:, :5], max_new_tokens=14), generated)


def from_gpt2(theirs, n_layers: int) -> dict:
    weights = theirs.state_dict()
    ours = {
        "embedding.weight": weights["transformer.wte.weight"], "unembedding.weight": weights["lm_head.weight"],
        "position_embedding.weight": weights["transformer.wpe.weight"],
        "final_norm.weight": weights["transformer.ln_f.weight"], "final_norm.bias": weights["transformer.ln_f.bias"],
    }  # fmt: skip
    for i in range(n_layers):
        old, new = f"transformer.h.{i}.", f"blocks.{i}."
        for kind in ("weight", "bias"):
            turn = torch.t if kind == "weight" else lambda x: x  # GPT-2 keeps its matrices transposed
            qkv = turn(weights[f"{old}attn.c_attn.{kind}"]).chunk(3)
            ours |= {f"{new}attention.w_{name}.{kind}": part for name, part in zip("qkv", qkv, strict=True)}
            ours[f"{new}attention.w_o.{kind}"] = turn(weights[f"{old}attn.c_proj.{kind}"])
            ours[f"{new}mlp.w_1.{kind}"] = turn(weights[f"{old}mlp.c_fc.{kind}"])
            ours[f"{new}mlp.w_2.{kind}"] = turn(weights[f"{old}mlp.c_proj.{kind}"])
            ours[f"{new}attention_norm.{kind}"] = weights[f"{old}ln_1.{kind}"]
            ours[f"{new}mlp_norm.{kind}"] = weights[f"{old}ln_2.{kind}"]
    return ours


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "separate"])
def test_gpt2(tie):
    transformers = pytest.importorskip("transformers")
    cfg = TransformerConfig(
        vocab_size=29, d_model=24, n_layers=3, n_heads=4, max_seq_len=19, positions="learned", norm="layernorm",
        activation="gelu", bias=True, tie_embeddings=tie,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=29, n_embd=24, n_layer=3, n_head=4, n_positions=19, tie_word_embeddings=tie,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    shake(theirs)
    ours = Transformer(cfg).eval()
    ours.load_state_dict(from_gpt2(theirs, 3))
    ids, keep = random_ids(3, 17), left_padding([17, 4, 9], 17)
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **CLOSE)
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    padded = theirs(ids, attention_mask=keep.long(), position_ids=positions).logits
    torch.testing.assert_close(ours(ids, padding_mask=keep)[keep], padded[keep], **CLOSE)


# --- torch.nn ---

ACTIVATIONS = {"relu": F.relu, "gelu": lambda x: F.gelu(x, approximate="tanh")}
PAPER = {
    "vocab_size": 29,
    "d_model": 24,
    "n_heads": 4,
    "d_ff": 40,
    "max_seq_len": 19,
    "norm": "layernorm",
    "bias": True,
}


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for kind in ("weight", "bias"):
            parts = getattr(theirs, f"in_proj_{kind}").chunk(3)
            for layer, part in zip((ours.w_q, ours.w_k, ours.w_v), parts, strict=True):
                getattr(layer, kind).copy_(part)
            getattr(ours.w_o, kind).copy_(getattr(theirs.out_proj, kind))


def copy_block(ours: Block, theirs: nn.Module) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    pairs = [(ours.attention_norm, theirs.norm1), (ours.mlp.w_1, theirs.linear1), (ours.mlp.w_2, theirs.linear2)]
    if ours.cross_attention is None:
        pairs += [(ours.mlp_norm, theirs.norm2)]
    else:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        pairs += [(ours.cross_attention_norm, theirs.norm2), (ours.mlp_norm, theirs.norm3)]
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("cross", [False, True], ids=["encoder layer", "decoder layer"])
def test_a_block_is_torchs_layer(norm_first, activation, cross):
    cfg = TransformerConfig(
        n_layers=1, activation=activation, norm_position="pre" if norm_first else "post", positions="none", **PAPER
    )
    options = {
        "d_model": 24, "nhead": 4, "dim_feedforward": 40, "dropout": 0.0, "activation": ACTIVATIONS[activation],
        "batch_first": True, "norm_first": norm_first,
    }  # fmt: skip
    theirs = shake((nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer)(**options))
    ours = Block(cfg, cross).eval()
    copy_block(ours, theirs)
    x, memory = torch.randn(2, 3, 7, 24, generator=torch.Generator().manual_seed(0)).unbind(0)
    memory = memory[:, :5]
    keep, keep_memory = left_padding([7, 3, 5], 7).flip(1), left_padding([5, 2, 4], 5).flip(1)
    if cross:
        future = ~causal_mask(7)
        expected = theirs(x, memory, tgt_mask=future, tgt_is_causal=True, memory_key_padding_mask=~keep_memory)
        torch.testing.assert_close(
            ours(x, causal=True, memory=memory, memory_mask=keep_memory[:, None, None]), expected, **CLOSE
        )
    else:
        torch.testing.assert_close(ours(x), theirs(x), **CLOSE)
        expected = theirs(x, src_key_padding_mask=~keep)
        torch.testing.assert_close(ours(x, mask=keep[:, None, None])[keep], expected[keep], **CLOSE)
    other = Block(cfg.replace(norm_position="post" if norm_first else "pre"), cross).eval()
    other.load_state_dict(ours.state_dict())
    arguments = {"memory": memory} if cross else {}
    assert (other(x, **arguments) - ours(x, **arguments)).abs().max() > 0.1, "the two orders really differ"


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_encoder_decoder_is_torchs_transformer(norm_first, activation):
    cfg = TransformerConfig(
        n_layers=2, n_encoder_layers=3, activation=activation, positions="sinusoidal", embedding_scale=True,
        norm_position="pre" if norm_first else "post", **PAPER,
    )  # fmt: skip
    theirs = nn.Transformer(
        d_model=24, nhead=4, num_encoder_layers=3, num_decoder_layers=2, dim_feedforward=40, dropout=0.0,
        activation=ACTIVATIONS[activation], batch_first=True, norm_first=norm_first,
    )  # fmt: skip
    shake(theirs)
    if not norm_first:  # torch adds a norm after the last block even where that block ends with one; the paper does not
        theirs.encoder.norm = theirs.decoder.norm = None
    ours = build(cfg)
    assert isinstance(ours, EncoderDecoder)
    for mine, other in zip([*ours.encoder.blocks, *ours.blocks], [*theirs.encoder.layers, *theirs.decoder.layers]):
        copy_block(mine, other)
    if norm_first:
        ours.encoder.final_norm.load_state_dict(theirs.encoder.norm.state_dict())
        ours.final_norm.load_state_dict(theirs.decoder.norm.state_dict())
    source, target, keep = random_ids(3, 9), random_ids(3, 7, seed=2), left_padding([9, 4, 6], 9).flip(1)
    with record(ours) as seen:
        logits = ours(source, target, source_mask=keep)
    expected = theirs(
        seen["encoder.embedding"], seen["embedding"], tgt_mask=~causal_mask(7), tgt_is_causal=True,
        src_key_padding_mask=~keep, memory_key_padding_mask=~keep,
    )  # fmt: skip
    torch.testing.assert_close(seen["final_norm" if norm_first else "blocks.1.stream"], expected, **CLOSE)
    torch.testing.assert_close(logits, ours.unembedding(expected), atol=1e-4, rtol=2e-5)
    scaled = ours.embedding(source) * 24**0.5 + sinusoids(torch.arange(9), 24)  # section 3.4 of the paper
    torch.testing.assert_close(ours(source, target), ours(source, target, source_mask=keep | True))
    assert torch.equal(ours.embed(source, torch.arange(9)), scaled)


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_multi_head_attention_is_torchs(cross):
    theirs = shake(nn.MultiheadAttention(24, 4, batch_first=True))
    cfg = TransformerConfig(n_layers=1, **PAPER)
    ours = MultiHeadAttention(cfg, cross=cross)
    copy_attention(ours, theirs)
    x, memory = torch.randn(2, 3, 7, 24, generator=torch.Generator().manual_seed(0)).unbind(0)
    memory = memory[:, :5] if cross else x
    mask = torch.rand(7, memory.shape[1], generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 0] = True
    expected, weights = theirs(x, memory, memory, attn_mask=~mask, average_attn_weights=False)
    arguments = {"memory": memory} if cross else {}
    torch.testing.assert_close(ours(x, mask=mask, **arguments), expected, **CLOSE)
    with record(ours) as seen:
        ours(x, mask=mask, **arguments)
    torch.testing.assert_close(seen["weights"], weights, **CLOSE)


@pytest.mark.parametrize(("size", "offset"), [(1e-4, 0.0), (1e-2, 0.0), (1e-2, 0.03), (1.0, 3.0), (1e3, 0.0)])
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_norms_are_torchs_on_vectors_of_any_variance(size, offset, eps):
    """eps inside the root and the biased variance: seen only where the variance is tiny or the width small."""
    x = offset + size * torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    for ours, theirs in ((LayerNorm(7, eps), nn.LayerNorm(7, eps)), (RMSNorm(7, eps), nn.RMSNorm(7, eps))):
        shake(ours)
        theirs.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=1e-6)


# --- Positions ---


@pytest.mark.parametrize("d_model", [6, 24, 512])
def test_sinusoids_are_the_papers_formula(d_model):
    expected = np.zeros((257, d_model))
    for position in range(257):
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            expected[position, 2 * i], expected[position, 2 * i + 1] = np.sin(angle), np.cos(angle)
    table = sinusoids(torch.arange(257), d_model).numpy()
    np.testing.assert_allclose(table, expected, atol=5e-5)  # float32 angles of up to 256
    assert table.shape == (257, d_model)
    scattered = torch.tensor([[3, 250], [0, 17], [9, 9]])
    np.testing.assert_array_equal(sinusoids(scattered, d_model).numpy(), table[scattered.numpy()])


@pytest.mark.parametrize("theta", [10_000.0, 100.0])
def test_rope_is_a_complex_product_in_the_interleaved_layout(theta):
    """The formula of the RoPE paper in numpy float64: neighbours are a complex number, turned by positions · θ_i."""
    d_k, positions = 8, np.array([0, 1, 5, 11, 100])
    x = np.random.default_rng(0).normal(size=(3, 2, 5, d_k))
    frequencies = theta ** (-2 * np.arange(d_k // 2) / d_k)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * positions[:, None] * frequencies)
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    order = interleaved_to_half_split(d_k)
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    ours = rotate(torch.tensor(x, dtype=torch.float32)[..., order], *rotation(torch.tensor(positions), d_k, theta))
    np.testing.assert_allclose(ours.numpy(), expected[..., order.numpy()], atol=3e-5)
    assert np.abs(ours.numpy() - expected).max() > 0.1, "the two layouts are not the same"
