"""Shapes that cannot be are refused with the values; no copy keeps a width that belongs to another shape."""

import dataclasses

import pytest
from small import small

from transformer_lib import PRESETS, Transformer, TransformerConfig

NEEDED = {"vocab_size": 29, "d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 19}


def test_presets_have_the_published_shapes():
    shapes = {
        name: (cfg.n_encoder_layers, cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.kv_heads, cfg.d_k, cfg.ff_width)
        for name, cfg in PRESETS.items()
    }
    assert shapes["paper-base"] == (6, 6, 512, 8, 8, 64, 2048)
    assert shapes["gpt2-small"] == (0, 12, 768, 12, 12, 64, 3072)
    assert shapes["llama2-7b"] == (0, 32, 4096, 32, 32, 128, 11008)
    assert shapes["smollm2-135m"] == (0, 30, 576, 9, 3, 64, 1536)
    assert "toy" in shapes


def test_defaults_are_llama_2s_choices():
    cfg = TransformerConfig(**NEEDED)
    assert (cfg.positions, cfg.norm, cfg.norm_position, cfg.activation) == ("rope", "rmsnorm", "pre", "swiglu")
    assert (cfg.bias, cfg.tie_embeddings, cfg.causal, cfg.dropout) == (False, False, True, 0.0)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"vocab_size": 0}, ["vocab_size", "0"]),
        ({"n_layers": -3}, ["n_layers", "-3"]),
        ({"d_model": 24.0}, ["d_model", "24.0"]),
        ({"max_seq_len": None}, ["max_seq_len", "None"]),
        ({"n_heads": True}, ["n_heads", "True"]),
        ({"n_kv_heads": 0}, ["n_kv_heads", "0"]),
        ({"head_dim": 0}, ["head_dim", "0"]),
        ({"d_ff": "wide"}, ["d_ff", "'wide'"]),
        ({"d_ff_multiple": 0}, ["d_ff_multiple", "0"]),
        ({"d_model": 25}, ["d_model=25", "n_heads=6"]),
        ({"n_kv_heads": 4}, ["n_heads=6", "n_kv_heads=4"]),
        ({"n_kv_heads": 12}, ["n_heads=6", "n_kv_heads=12"]),
        ({"head_dim": 7}, ["even", "d_k=7"]),
        ({"n_heads": 5, "d_model": 15}, ["even", "d_k=3"]),
        ({"d_model": 27, "n_heads": 3, "positions": "sinusoidal"}, ["even", "d_model=27"]),
        ({"positions": "rotary"}, ["positions", "'rope'", "'rotary'"]),
        ({"norm": "batchnorm"}, ["norm", "'batchnorm'", "'layernorm'"]),
        ({"norm_position": "middle"}, ["norm_position", "'pre'", "'middle'"]),
        ({"activation": "tanh"}, ["activation", "'tanh'", "'gelu'"]),
        ({"bias": 1}, ["bias", "1"]),
        ({"causal": "yes"}, ["causal", "'yes'"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"dropout": -0.1}, ["dropout", "-0.1"]),
        ({"norm_eps": float("nan")}, ["norm_eps", "nan"]),
        ({"rope_theta": 0}, ["rope_theta", "0"]),
        ({"rope_theta": "big"}, ["rope_theta", "'big'"]),
        ({"n_encoder_layers": -1}, ["n_encoder_layers", "-1"]),
        ({"n_encoder_layers": 1.5}, ["n_encoder_layers", "1.5"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_values(changes, values):
    with pytest.raises(ValueError) as refusal:
        TransformerConfig(**(NEEDED | changes))
    sentence = str(refusal.value)
    assert all(value in sentence for value in values), sentence
    assert sentence.endswith(".") and "\n" not in sentence


def test_replace_checks_again_and_knows_its_fields():
    with pytest.raises(ValueError, match=r"no field 'layers'.*n_layers"):
        small().replace(layers=3)
    with pytest.raises(ValueError, match="n_kv_heads=5"):
        small().replace(n_kv_heads=5)


def test_replace_keeps_no_stale_width():
    cfg = TransformerConfig(**NEEDED)
    assert (cfg.d_k, cfg.kv_heads, cfg.ff_width) == (4, 6, 64)
    wider = cfg.replace(d_model=96, n_heads=12)
    assert (wider.d_k, wider.kv_heads, wider.ff_width) == (8, 12, 256)
    assert cfg.replace(activation="gelu").ff_width == 96
    assert cfg.replace(d_ff_multiple=50).ff_width == 100
    assert small().replace(d_model=48).ff_width == 40, "a width that was asked for stays"


def test_swiglu_width_is_two_thirds_rounded_up():
    assert PRESETS["llama2-7b"].replace(d_ff_multiple=1).ff_width == 10_922
    assert PRESETS["llama2-7b"].ff_width == 11_008 == 43 * 256
    assert TransformerConfig(**NEEDED | {"d_model": 60, "n_heads": 6}).ff_width == 160


def test_a_config_cannot_be_changed_and_is_hashable():
    cfg = small()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.d_model = 48
    assert cfg == small() and hash(cfg) == hash(small()) and cfg != cfg.replace(n_layers=3)


def test_each_model_refuses_the_other_models_config():
    with pytest.raises(ValueError, match="n_encoder_layers=3"):
        Transformer(small(n_encoder_layers=3))
    from transformer_lib import EncoderDecoder

    with pytest.raises(ValueError, match="n_encoder_layers"):
        EncoderDecoder(small())
