"""GGUF files: written here by the gguf package's own writer, in each kind of number; damaged ones are refused."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import EXPECTED, STORIES, needs_stories

from transformer_lib import Transformer, TransformerConfig
from transformer_lib.pretrained import load_pretrained
from transformer_lib.pretrained.sentencepiece_file import sentencepiece_model
from transformer_lib.tokenizer import Tokenizer

# Blocks of the K kinds have 256 numbers, so rows have 256 or 512.
CFG = TransformerConfig(
    vocab_size=290, d_model=256, n_layers=2, n_heads=8, n_kv_heads=2, d_ff=512, max_seq_len=40, rope_theta=5000.0
)
SMALL = CFG.replace(vocab_size=275, d_model=24, n_heads=6, d_ff=40)
VOCABULARY = Tokenizer.train("a b c d e f g\n" * 50, 270)
IDS = torch.tensor([[3, 250, 17, 17, 0, 269, 4], [9, 1, 2, 77, 88, 99, 5]])
Kind = gguf.GGMLQuantizationType
NAMES = {
    "embedding": "token_embd", "attention_norm": "attn_norm", "attention.w_q": "attn_q", "attention.w_k": "attn_k",
    "attention.w_v": "attn_v", "attention.w_o": "attn_output", "mlp_norm": "ffn_norm", "mlp.w_1": "ffn_gate",
    "mlp.w_3": "ffn_up", "mlp.w_2": "ffn_down", "final_norm": "output_norm", "unembedding": "output",
}  # fmt: skip


def random_model(cfg):
    torch.manual_seed(6)
    model = Transformer(cfg).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.dim() == 1))
    return model


def interleaved(weight, d_k):
    """Row i and row i + d_k / 2 of each head become neighbours, as llama.cpp wants them."""
    heads = weight.reshape(-1, 2, d_k // 2, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def their_name(name):
    layer, _, kind = name.rpartition(".")
    if layer.startswith("blocks."):
        _, i, part = layer.split(".", 2)
        return f"blk.{i}.{NAMES[part]}.{kind}"
    return f"{NAMES[layer]}.{kind}"


def random_blocks(rng, shape, kind):
    """Valid blocks of a kind that the package reads and does not write: random bits, with small scales."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (math.prod(shape) // size, width), dtype=np.uint8)
    scales = rng.uniform(1e-4, 1e-3, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    if kind == Kind.Q6_K:
        blocks[:, -2:] = scales[:, :2]
    else:  # Q4_K
        blocks[:, :4] = scales
    return blocks.reshape(*shape[:-1], -1)


def write(path, model, kind=Kind.F32, metadata=None, drop=(), extra=None, vocabulary=True, factors=None):
    """A GGUF file of `model`; returns a copy of the model with the numbers that the file really holds."""
    cfg, rng = model.cfg, np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    given = {
        "block_count": cfg.n_layers, "context_length": cfg.max_seq_len, "embedding_length": cfg.d_model,
        "feed_forward_length": cfg.ff_width, "attention.head_count": cfg.n_heads,
        "attention.head_count_kv": cfg.kv_heads, "rope.dimension_count": cfg.d_k,
    }  # fmt: skip
    for name, value in (given | (metadata or {})).items():
        if value is not None:
            writer.add_key_value(f"llama.{name}", value, gguf.GGUFValueType.get_type(value))
    writer.add_float32("llama.rope.freq_base", cfg.rope_theta)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", cfg.norm_eps)
    if cfg.head_dim:
        writer.add_key_length(cfg.d_k)
        writer.add_value_length(cfg.d_k)
    if vocabulary:
        add_sentencepiece(writer)
    held = Transformer(cfg).eval()
    for (name, ours), (_, parameter) in zip(model.named_parameters(), held.named_parameters(), strict=True):
        weight = ours.detach().numpy()
        d_k = cfg.d_k if name.split(".")[-2] in ("w_q", "w_k") else None
        if d_k:
            weight = interleaved(weight, d_k)
        its = Kind.F32 if weight.ndim == 1 else kind
        raw = (
            random_blocks(rng, weight.shape, its)
            if its in (Kind.Q4_K, Kind.Q6_K)
            else gguf.quants.quantize(weight, its)
        )
        numbers = torch.from_numpy(np.array(gguf.quants.dequantize(raw, its)))
        if d_k:  # and back: neighbours become halves
            numbers = numbers.reshape(-1, d_k // 2, 2, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
        with torch.no_grad():
            parameter.copy_(numbers)
        if their_name(name) not in drop:
            writer.add_tensor(their_name(name), raw, raw_dtype=its)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def add_sentencepiece(writer):
    processor = VOCABULARY._processor
    size = range(processor.vocab_size())
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in size
    ]
    kinds[processor.piece_to_id("\n")] = 4
    writer.add_tokenizer_model("llama")
    writer.add_token_list([processor.id_to_piece(i) for i in size])
    writer.add_token_scores([processor.get_score(i) for i in size])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(processor.unk_id())
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_add_space_prefix(False)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"])
def test_each_kind_of_number(tmp_path, kind):
    held = write(tmp_path / "m.gguf", random_model(CFG), Kind[kind])
    model, _ = load_pretrained(tmp_path / "m.gguf")
    assert model.cfg == CFG
    for (name, ours), theirs in zip(model.named_parameters(), held.parameters(), strict=True):
        assert ours.abs().max() > 0, name
        assert torch.equal(ours, theirs), name
    with torch.no_grad():
        assert torch.equal(model(IDS), held(IDS))


@pytest.mark.parametrize("change", [{"tie_embeddings": True}, {"head_dim": 10}, {"bias": True}, {"norm_eps": 1e-6}])
def test_each_shape(tmp_path, change):
    cfg = SMALL.replace(**change)
    held = write(tmp_path / "m.gguf", random_model(cfg))
    model, tokenizer = load_pretrained(tmp_path / "m.gguf")
    assert model.cfg == cfg
    with torch.no_grad():
        assert torch.equal(model(IDS), held(IDS))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (VOCABULARY.bos_id, VOCABULARY.eos_id)


def test_biases_in_attention_alone(tmp_path):
    model = random_model(SMALL.replace(bias=True))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mlp." in name and name.endswith("bias"):
                parameter.zero_()
    drop = [f"blk.{i}.ffn_{part}.bias" for i in (0, 1) for part in ("gate", "up", "down")]
    held = write(tmp_path / "m.gguf", model, drop=drop)
    with torch.no_grad():
        assert torch.equal(load_pretrained(tmp_path / "m.gguf")[0](IDS), held(IDS))


@given(st.text(st.characters(codec="utf-8"), max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentencepiece_vocabulary(tmp_path_factory, text):
    tokenizer = sentencepiece_tokenizer(tmp_path_factory)
    assert tokenizer.encode(text) == VOCABULARY.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


TOKENIZERS = []


def sentencepiece_tokenizer(tmp_path_factory):
    if not TOKENIZERS:
        path = tmp_path_factory.mktemp("gguf") / "m.gguf"
        write(path, random_model(SMALL))
        TOKENIZERS.append(load_pretrained(path)[1])
    return TOKENIZERS[0]


@pytest.mark.reference
@needs_stories
def test_a_sentencepiece_vocabulary_that_puts_a_space_first():
    """The published one, through the lists that a GGUF file would hold."""
    processor = Tokenizer.load(STORIES.with_name("tok512.model"))._processor
    tests = {2: processor.is_unknown, 3: processor.is_control, 6: processor.is_byte}
    size = range(processor.vocab_size())
    fields = {
        "tokens": [processor.id_to_piece(i) for i in size],
        "scores": [processor.get_score(i) for i in size],
        "token_type": [next((kind for kind, test in tests.items() if test(i)), 1) for i in size],
        "unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    model = sentencepiece_model({f"tokenizer.ggml.{name}": value for name, value in fields.items()})
    tokenizer = Tokenizer(model)
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    for case in json.loads((EXPECTED / "tok512_tokenizer_cases.json").read_text())["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["name"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["name"]


def byte_level_file(path, words, count=275):
    """A vocabulary of the 256 bytes, a few merges and two control tokens, in the words of GGUF."""
    signs = sorted(gguf_bytes())
    merges = ["Ġ a", "b c", "1 2", "Ċ Ċ", "' s", "Ġa bc"]
    tokens = ["<|endoftext|>", "<|im_end|>", *signs, *(merge.replace(" ", "") for merge in merges)]
    tokens += [f"[{i}]" for i in range(count - len(tokens))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (count - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    return writer, tokens


def gguf_bytes():
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def pieces(tmp_path, words, text):
    from transformer_lib.pretrained.gguf_file import open_gguf
    from transformer_lib.pretrained.vocabulary import in_gguf

    path = tmp_path / f"{words}.gguf"
    writer, _ = byte_level_file(path, words)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = in_gguf(path, open_gguf(path)[0])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    return tokenizer.pieces(text)


def test_byte_level_vocabularies_cut_words_as_their_rule_says(tmp_path):
    assert pieces(tmp_path, "gpt-2", " abc12's<|im_end|>é") == ["Ġabc", "12", "'s", "<|im_end|>", "Ã", "©"]
    assert pieces(tmp_path, "smollm", " abc12's") == ["Ġabc", "1", "2", "'s"]
    assert pieces(tmp_path, "llama-bpe", "\n\nabc") == ["ĊĊ", "a", "bc"]
    assert pieces(tmp_path, "llama-bpe", "!bc\n\n") == ["!", "bc", "ĊĊ"]
    with pytest.raises(ValueError, match=r"the rule 'tekken', which is not known here; .* tokenizer=…"):
        pieces(tmp_path, "tekken", "a")


def llama_3_factors(d_k, theta, factor, low=1.0, high=4.0, original=8192):
    """As llama.cpp's converter computes them, wave by wave."""
    out = []
    for i in range(0, d_k, 2):
        wave = 2 * math.pi * theta ** (i / d_k)
        if wave < original / high:
            out.append(1.0)
        elif wave > original / low:
            out.append(factor)
        else:
            smooth = (original / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def test_llama_3_scaling(tmp_path):
    cfg = SMALL.replace(head_dim=64, rope_theta=500_000.0)
    write(tmp_path / "m.gguf", random_model(cfg), factors=llama_3_factors(64, 500_000.0, 32.0))
    model, _ = load_pretrained(tmp_path / "m.gguf")
    assert model.cfg == cfg.replace(rope_scaling=(32.0, 1.0, 4.0, 8192))
    write(tmp_path / "o.gguf", random_model(cfg), factors=llama_3_factors(64, 500_000.0, 32.0, original=4096))
    with pytest.raises(ValueError, match=r"o\.gguf: tensor rope_freqs\.weight scales RoPE otherwise than Llama 3\.1"):
        load_pretrained(tmp_path / "o.gguf")


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"metadata": {"rope.scaling.type": "yarn"}}, r"llama\.rope\.scaling\.type is 'yarn'"),
        ({"metadata": {"attention.sliding_window": 512}}, r"llama\.attention\.sliding_window is 512"),
        ({"metadata": {"expert_count": 8}}, r"llama\.expert_count is 8"),
        ({"metadata": {"block_count": None}}, r"does not say llama\.block_count"),
        ({"metadata": {"block_count": 3}}, r"tensor blk\.2\.attn_norm\.weight is missing: .* 3 blocks"),
        (
            {"metadata": {"block_count": 9_999}},
            r"blk\.2\.attn_norm\.weight is missing: .* 9999 blocks",
        ),
        ({"metadata": {"block_count": 1}}, r"tensor blk\.1\..* has no place"),
        ({"metadata": {"embedding_length": 48}}, r"llama\.rope\.dimension_count is 4; these layers have only d_k=8"),
        (
            {"metadata": {"embedding_length": 42, "rope.dimension_count": None}},
            r"attn_q\.weight of shape \(24, 24\) cannot be cut into heads of 7 rows|head width must be even; got d_k=7",
        ),
        (
            {"metadata": {"embedding_length": 60, "rope.dimension_count": None}},
            r"attn_q\.weight of shape \(24, 24\) cannot be cut into heads of 10 rows",
        ),
        ({"metadata": {"feed_forward_length": 41}}, r"ffn_gate\.weight gives shape \(40, 24\) .* asks for \(41, 24\)"),
        ({"metadata": {"attention.head_count": 0}}, "n_heads must be a whole number of at least 1; got 0"),
        ({"metadata": {"vocab_size": 1000}}, r"token_embd\.weight gives shape \(275, 24\) .* asks for \(1000, 24\)"),
        ({"metadata": {"rope.dimension_count": 2}}, r"llama\.rope\.dimension_count is 2; these layers have only d_k=4"),
        ({"drop": ["blk.1.attn_v.weight"]}, r"tensor blk\.1\.attn_v\.weight of shape \(8, 24\) is missing"),
        ({"drop": ["token_embd.weight"]}, r"tensor token_embd\.weight is missing"),
        (
            {"extra": {"blk.0.attn_q_norm.weight": np.ones(4, np.float32)}},
            r"attn_q_norm\.weight of shape \(4,\) belongs",
        ),
        ({"extra": {"blk.0.attn_q.bias": np.ones(24, np.int8)}}, r"attn_q\.bias is stored as I8"),
        ({"vocabulary": False}, r"has no tokenizer\.ggml\.model; name one"),
    ],
)
def test_what_is_refused(tmp_path, options, sentence):
    write(tmp_path / "m.gguf", random_model(SMALL), **options)
    with pytest.raises(ValueError, match=sentence) as error:
        load_pretrained(tmp_path / "m.gguf")
    assert "m.gguf" in str(error.value)
    assert "\n" not in str(error.value)


def test_another_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture is 'mamba'; only GGUF files of 'llama'"):
        load_pretrained(tmp_path / "m.gguf")


def test_cut_short_anywhere(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, random_model(SMALL))
    whole = path.read_bytes()
    for length in [*range(0, 100, 3), *range(100, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"m\.gguf"):
            load_pretrained(path, tokenizer=VOCABULARY)


def test_damaged_bytes_in_the_header_end_in_a_sentence_or_a_model(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, random_model(SMALL))
    whole, rng = path.read_bytes(), np.random.default_rng(8)
    for at in [*range(4, 60), *rng.integers(60, 12_000, 60)]:
        for damage in (b"\xff" * 8, b"\0" * 8, b"\x7f"):
            path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
            try:
                load_pretrained(path, tokenizer=VOCABULARY if at % 2 else None)
            except ValueError as error:
                assert "m.gguf" in str(error)
