"""Hugging Face folders: the logits are those of transformers, both ways; what cannot be computed is refused by name."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from transformer_lib import KVCache, Transformer, TransformerConfig
from transformer_lib.pretrained import load_pretrained, save_huggingface
from transformer_lib.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

VOCABULARY = Tokenizer.train("a b c d e f g\n" * 50, 270)
IDS = torch.tensor([[3, 250, 17, 17, 0, 269, 4], [9, 1, 2, 77, 88, 99, 5]])
# float32 logits of size about 1, sums in another order
CLOSE = {"atol": 2e-5, "rtol": 1e-4}

LLAMA = {
    "vocab_size": 271, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "initializer_range": 0.3,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
GPT2 = {"vocab_size": 271, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 64, "initializer_range": 0.3}


def folder_of(tmp_path, config, **options):
    """A folder as transformers writes it, with a random model that has no zero or one left where a bias or norm is."""
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path, **options)
    VOCABULARY.save(tmp_path / "tokenizer.model")
    return model


@pytest.mark.parametrize(
    "change",
    [
        {}, {"tie_word_embeddings": True}, {"head_dim": 10}, {"attention_bias": True}, {"mlp_bias": True},
        {"attention_bias": True, "mlp_bias": True}, {"rope_parameters": LLAMA_3}, {"num_key_value_heads": 6},
        {"num_key_value_heads": 1}, {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    ],
)  # fmt: skip
def test_llama_logits(tmp_path, change):
    theirs = folder_of(tmp_path, transformers.LlamaConfig(**(LLAMA | change)))
    ours, tokenizer = load_pretrained(tmp_path)
    assert tokenizer.vocab_size == 270
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, **CLOSE)
    save_huggingface(ours, tokenizer, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, theirs(IDS).logits, **CLOSE)
    back, _ = load_pretrained(tmp_path / "again")
    assert back.cfg == ours.cfg
    assert torch.equal(back(IDS), ours(IDS))


def test_llama_3_scaling_far_out(tmp_path):
    theirs = folder_of(tmp_path, transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA_3))
    ours, _ = load_pretrained(tmp_path)
    ids = torch.arange(64)[None] * 3
    cache = KVCache(ours.cfg, 1, 64)
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(ours(ids), expected, **CLOSE)
        parts = [ours(chunk, cache=cache) for chunk in ids.split([50, 1, 13], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, **CLOSE)
    unscaled, _ = load_pretrained(tmp_path)
    unscaled.cfg = unscaled.cfg.replace(rope_scaling=None)
    assert not torch.allclose(unscaled(ids), expected, atol=1e-2)


def test_llama_3_scaling_in_the_words_of_transformers_4(tmp_path):
    theirs = folder_of(tmp_path, transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA_3))
    settings = json.loads((tmp_path / "config.json").read_text())
    rope = settings.pop("rope_parameters")
    settings |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    ours, _ = load_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, **CLOSE)


@pytest.mark.parametrize(
    "change", [{}, {"tie_word_embeddings": False}, {"n_inner": 56}, {"activation_function": "relu"}]
)
def test_gpt2_logits(tmp_path, change):
    theirs = folder_of(tmp_path, transformers.GPT2Config(**(GPT2 | change)))
    ours, tokenizer = load_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, **CLOSE)
    save_huggingface(ours, tokenizer, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, theirs(IDS).logits, **CLOSE)
    back, _ = load_pretrained(tmp_path / "again")
    assert back.cfg == ours.cfg.replace(d_ff=ours.cfg.ff_width)
    assert torch.equal(back(IDS), ours(IDS))


def test_gpt2_in_the_form_of_its_first_release(tmp_path):
    """Without the prefix, and with the causal mask stored as if it were a weight."""
    theirs = folder_of(tmp_path, transformers.GPT2Config(**GPT2))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["h.1.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours, _ = load_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, **CLOSE)


def test_sharded(tmp_path):
    theirs = folder_of(tmp_path, transformers.LlamaConfig(**LLAMA), max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours, _ = load_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, **CLOSE)
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ValueError, match=r"incomplete: model-00002-of-.* is missing"):
        load_pretrained(tmp_path)


def test_tokenizer_json_goes_before_and_config_says_the_special_ids(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA, bos_token_id=1, eos_token_id=[2, 0]))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|begin|>", "<|end|>", *alphabet, "Ġb"]
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges=[("Ġ", "b")])
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    theirs.add_special_tokens(tokens[:3])
    theirs.save(str(tmp_path / "tokenizer.json"))
    model, tokenizer = load_pretrained(tmp_path)
    assert tokenizer.encode("a b<|end|>") == [tokens.index(token) for token in ("a", "Ġb", "<|end|>")]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    save_huggingface(model, tokenizer, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.encode("é b", add_special_tokens=False) == tokenizer.encode("é b")
    assert load_pretrained(tmp_path / "again")[1].eos_id == 2


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_dtypes(tmp_path, stored, wanted):
    theirs = folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    theirs.to(stored).save_pretrained(tmp_path)
    ours, _ = load_pretrained(tmp_path, dtype=wanted)
    assert all(parameter.dtype == wanted for parameter in ours.parameters())
    assert torch.equal(ours.blocks[1].mlp.w_2.weight, theirs.model.layers[1].mlp.down_proj.weight.to(wanted))
    assert ours(IDS).dtype == torch.float32
    with pytest.raises(ValueError, match=r"dtype must be one of .* got torch\.int8"):
        load_pretrained(tmp_path, dtype=torch.int8)


def test_loaded_weights_do_not_hang_on_the_file(tmp_path):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    ours, _ = load_pretrained(tmp_path)
    before = ours(IDS)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100_000)
    assert torch.equal(ours(IDS), before)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"architectures": ["MistralForCausalLM"]}, "architecture is 'MistralForCausalLM'"),
        ({"architectures": None, "model_type": "bert"}, "architecture is 'bert'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling of type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "RoPE scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "does not say low_freq_factor"),
        ({"rope_parameters": LLAMA_3 | {"high_freq_factor": 1.0}}, "rope_scaling must be"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": 7}, "rope_scaling must be an object or null; got 7"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"num_attention_heads": 5}, "n_heads=5 query heads cannot share"),
        ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight is missing: .* 4 blocks, .* of 3"),
        ({"num_hidden_layers": 10**12}, "n_layers must be at most 10,000; got 1,000,000,000,000"),
        ({"num_hidden_layers": 2}, "tensor model.layers.2.* has no place"),
        ({"hidden_size": 48, "head_dim": 8}, r"tensor .* gives shape .*24.* for .* asks for .*48"),
        ({"hidden_size": 6 * 10**17}, "d_model must be at most"),
        ({"hidden_size": 2**31 - 8, "vocab_size": 2**31 - 1}, "no machine can hold"),
        ({"hidden_size": "24"}, "d_model must be a whole number"),
        ({"vocab_size": 999}, r"embed_tokens.weight gives shape \(271, 24\) .* asks for \(999, 24\)"),
        ({"attention_bias": True}, "q_proj.bias .* is missing"),
        ({"attention_bias": "yes"}, "bias must be True or False"),
        ({"mlp_bias": True}, "down_proj.bias .* is missing|gate_proj.bias .* is missing"),
        ({"intermediate_size": None}, None),
    ],
)
def test_configs_that_are_refused(tmp_path, change, sentence):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    settings = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    with pytest.raises(ValueError, match=sentence or "does not say intermediate_size") as error:
        load_pretrained(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"activation_function": "gelu"}, "activation_function='gelu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"n_inner": 48}, r"mlp.c_fc.weight gives shape \(96, 24\) for blocks.0.mlp.w_1.weight, .* \(48, 24\)"),
    ],
)
def test_gpt2_configs_that_are_refused(tmp_path, change, sentence):
    folder_of(tmp_path, transformers.GPT2Config(**GPT2))
    settings = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=sentence):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name, tensor, sentence",
    [
        ("model.layers.1.self_attn.v_proj.weight", None, r"v_proj.weight of shape \(8, 24\) is missing"),
        ("lm_head.weight", None, r"lm_head.weight of shape \(271, 24\) is missing"),
        ("model.layers.0.mlp.up_proj.weight", torch.ones(40, 25), r"shape \(40, 25\) for .* asks for \(40, 24\)"),
        ("model.layers.1.self_attn.q_norm.weight", torch.ones(4), r"q_norm.weight of shape \(4,\) belongs to no layer"),
        ("model.norm.bias", torch.ones(24), "model.norm.bias of shape .* has no place"),
        ("model.norm.weight", torch.ones(24, dtype=torch.int8), "model.norm.weight is stored as I8"),
    ],
)
def test_tensors_that_are_refused(tmp_path, name, tensor, sentence):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, file)
    with pytest.raises(ValueError, match=sentence):
        load_pretrained(tmp_path)


def test_cut_short_anywhere(tmp_path):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, 1000, *range(2000, len(whole), 9001), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors is cut short or no safetensors file"):
            load_pretrained(tmp_path)
    file.write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short or no safetensors file"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0", "7", "[" * 100_000])
def test_config_that_is_no_json_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json (cannot be read as JSON|must hold a JSON object)"):
        load_pretrained(tmp_path)


def test_an_index_cannot_lead_out_of_the_folder(tmp_path):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    (tmp_path / "model.safetensors").rename(tmp_path.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="the name of a file in this folder"):
        load_pretrained(tmp_path)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["model.pt", "model.bin", "pytorch_model.bin", "model", "model.gguf"])
def test_a_hostile_pickle_is_not_opened(tmp_path, name, protocol):
    trap, victim = tmp_path / name, tmp_path / "created"
    trap.write_bytes(pickle.dumps(Hostile(victim), protocol))
    with pytest.raises(ValueError, match=r"is a pickle|llama2\.c|its header|must be a whole number|vocab_size|head"):
        load_pretrained(trap, tokenizer=VOCABULARY)
    torch.save(Hostile(victim), trap)
    with pytest.raises(ValueError, match="is a pickle, which could run any code and is never opened"):
        load_pretrained(trap, tokenizer=VOCABULARY)
    (tmp_path / "config.json").write_text(json.dumps(transformers.LlamaConfig(**LLAMA).to_dict()))
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load_pretrained(tmp_path)
    assert not victim.exists()


def test_what_is_not_there_or_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*nowhere"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_pretrained(tmp_path)
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA))
    with pytest.raises(ValueError, match="give the folder that holds it"):
        load_pretrained(tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(ValueError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_pretrained(tmp_path)
    assert load_pretrained(tmp_path, tokenizer=VOCABULARY)[1] is VOCABULARY
    larger = Tokenizer.train("a b c d e f g " * 50 + "abc bcd cde def efg " * 50, 280)
    with pytest.raises(ValueError, match="the tokenizer has 280 ids and the model 271 rows"):
        load_pretrained(tmp_path, tokenizer=larger)


@pytest.mark.parametrize(
    "change",
    [
        {"positions": "sinusoidal"}, {"norm": "layernorm"}, {"norm_position": "post"}, {"activation": "relu"},
        {"scale_scores": False}, {"positions": "learned"}, {"positions": "learned", "norm": "layernorm"},
        {"positions": "learned", "norm": "layernorm", "bias": True},
        {"positions": "learned", "norm": "layernorm", "bias": True, "activation": "gelu", "n_kv_heads": 2},
        {"positions": "learned", "norm": "layernorm", "bias": True, "activation": "gelu", "head_dim": 5},
    ],
)  # fmt: skip
def test_saving_what_neither_layout_can_say(tmp_path, change):
    cfg = TransformerConfig(vocab_size=31, d_model=24, n_layers=2, n_heads=6, max_seq_len=9).replace(**change)
    with pytest.raises(ValueError, match=r"a (Llama|GPT-2) folder cannot say"):
        save_huggingface(Transformer(cfg), None, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_biases_that_the_config_denies(tmp_path):
    folder_of(tmp_path, transformers.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True))
    settings = json.loads((tmp_path / "config.json").read_text())
    for denied, sentence in (("attention_bias", r"self_attn\..*bias is there"), ("mlp_bias", r"mlp\..*bias is there")):
        (tmp_path / "config.json").write_text(json.dumps(settings | {denied: False}))
        with pytest.raises(ValueError, match=sentence):
            load_pretrained(tmp_path)


def test_saving_over_another_model_leaves_none_of_its_tokenizer(tmp_path):
    cfg = TransformerConfig(vocab_size=271, d_model=24, n_layers=2, n_heads=6, max_seq_len=9)
    (tmp_path / "tokenizer.json").write_text("{}")
    save_huggingface(Transformer(cfg), VOCABULARY, tmp_path)
    assert load_pretrained(tmp_path)[1].encode("a b") == VOCABULARY.encode("a b")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file; name a folder"):
        save_huggingface(Transformer(cfg), VOCABULARY, tmp_path / "file")


def test_an_interrupted_save_leaves_the_earlier_folder(tmp_path):
    cfg = TransformerConfig(vocab_size=31, d_model=24, n_layers=2, n_heads=6, max_seq_len=9)
    out = tmp_path / "out"
    save_huggingface(Transformer(cfg), None, out)
    (out / "mine.txt").write_text("kept")
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    class Breaks:
        bos_id = eos_id = None

        def save(self, path):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        save_huggingface(Transformer(cfg), Breaks(), out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]
