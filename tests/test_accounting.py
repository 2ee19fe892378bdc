"""Closed forms against the real thing: the module on the meta device, torch's FLOP counter, what autograd keeps.

All equalities are exact but that of the activations, which leaves out a few numbers per token: 3%.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small import build, random_ids, small
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib import PRESETS, EncoderDecoder, KVCache, Transformer, TransformerConfig, record
from transformer_lib.accounting import (
    count_parameters,
    flops_per_sequence,
    flops_per_token,
    gb,
    gib,
    kv_cache_bytes,
    parameter_table,
    training_memory,
    weight_bytes,
)

LLAMA = PRESETS["llama2-7b"]


def on_meta(cfg):
    with torch.device("meta"):
        return (EncoderDecoder if cfg.n_encoder_layers else Transformer)(cfg)


def storages(model) -> int:
    """Numbers stored, a shared tensor once."""
    return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())


@st.composite
def configs(draw, least_encoders: int = 0, most_encoders: int = 2):
    n_kv_heads, head_dim = draw(st.integers(1, 3)), draw(st.sampled_from([None, 2, 6]))
    n_heads = n_kv_heads * draw(st.integers(1, 3))
    return TransformerConfig(
        vocab_size=draw(st.integers(1, 50)), d_model=n_heads * 2 * draw(st.integers(1, 5)), n_heads=n_heads,
        n_kv_heads=n_kv_heads, head_dim=head_dim, n_layers=draw(st.integers(1, 3)),
        n_encoder_layers=draw(st.integers(least_encoders, most_encoders)),
        d_ff=draw(st.sampled_from([None, 7])), d_ff_multiple=draw(st.integers(1, 9)),
        max_seq_len=draw(st.integers(1, 30)),
        positions=draw(st.sampled_from(["rope", "sinusoidal", "learned", "none"])),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])), norm_position=draw(st.sampled_from(["pre", "post"])),
        activation=draw(st.sampled_from(["swiglu", "gelu", "relu"])), bias=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
    )  # fmt: skip


# --- Parameters ---


@settings(deadline=None, max_examples=40)
@given(configs())
def test_rows_are_the_modules_parameters_by_name_and_shape(cfg):
    counts, model = count_parameters(cfg), on_meta(cfg)
    rows = {f"{row.part}.{row.tensor}": row.shape for row in counts.rows}
    assert rows == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert len(rows) == len(counts.rows) and counts.total == storages(model)
    assert all(row.count == torch.Size(row.shape).numel() for row in counts.rows)
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert counts.multiplying == linear


@pytest.mark.parametrize(("name", "cfg"), PRESETS.items(), ids=PRESETS)
def test_presets_equal_the_module_on_the_meta_device(name, cfg):
    model = on_meta(cfg)
    assert all(p.is_meta for p in model.parameters())
    assert count_parameters(cfg).total == storages(model)


def test_published_totals():
    totals = {name: count_parameters(cfg).total for name, cfg in PRESETS.items()}
    assert totals["llama2-7b"] == 6_738_415_616
    assert totals["gpt2-small"] == 124_439_808
    assert totals["paper-base"] == 63_082_496
    assert totals["smollm2-135m"] == 134_515_008


def test_llama_2_7b_weight_by_weight():
    counts = count_parameters(LLAMA)
    assert counts.part("blocks.0.attention.") == 67_108_864
    assert counts.part("blocks.31.mlp.") == 135_266_304
    assert counts.part("blocks.7.attention_norm.") + counts.part("blocks.7.mlp_norm.") == 8_192
    assert counts.part("blocks.") == 6_476_267_520
    assert counts.part("embedding.") + counts.part("unembedding.") == 262_144_000
    assert counts.part("final_norm.") == 4_096
    assert counts.multiplying == 6_607_077_376 == counts.total - 131_072_000 - 65 * 4_096


def test_a_tied_table_is_stored_once_and_multiplies():
    tied, separate = count_parameters(small(tie_embeddings=True)), count_parameters(small())
    assert separate.total - tied.total == 29 * 24 and separate.multiplying == tied.multiplying
    assert not any(row.part == "unembedding" for row in tied.rows)


# --- FLOPs ---


def counted(model, *inputs) -> int:
    """torch's count, on the readable path: it reports 0 for the fused kernel on the CPU."""
    with record(model), FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops()


@settings(deadline=None, max_examples=25)
@given(cfg=configs(0, 0), tokens=st.integers(1, 9), batch=st.integers(1, 3), causal=st.booleans())
def test_sequence_flops_equal_torchs_counter(cfg, tokens, batch, causal):
    """The readable path computes the whole square: the masked half is what it wastes."""
    cfg = cfg.replace(causal=causal, max_seq_len=9)
    flops = flops_per_sequence(cfg, tokens)
    assert counted(build(cfg), random_ids(batch, tokens, vocab_size=cfg.vocab_size)) == batch * (
        flops.total + flops.masked
    )
    assert flops.total == (
        sum(flops_per_token(cfg, t).total for t in range(1, tokens + 1))
        if causal
        else tokens * flops_per_token(cfg, tokens).total
    )
    pairs = 4 * cfg.n_layers * cfg.n_heads * cfg.d_k
    assert flops.masked == (pairs * (tokens * tokens - tokens * (tokens + 1) // 2) if causal else 0)


@settings(deadline=None, max_examples=15)
@given(cfg=configs(1, 2), tokens=st.integers(1, 9))
def test_encoder_decoder_flops_equal_torchs_counter(cfg, tokens):
    cfg = cfg.replace(max_seq_len=9)
    flops, ids = flops_per_sequence(cfg, tokens), random_ids(2, tokens, vocab_size=cfg.vocab_size)
    assert counted(build(cfg), ids, ids) == 2 * (flops.total + flops.masked)


def test_a_decode_steps_flops_are_those_of_one_token():
    model, context = build(small()), 13
    cache, ids = KVCache(model.cfg, 3, context), random_ids(3, context)
    model(ids[:, :-1], cache=cache)
    with record(model), FlopCounterMode(display=False) as counter:
        model(ids[:, -1:], cache=cache)
    assert counter.get_total_flops() == 3 * flops_per_token(model.cfg, context).total


def test_training_costs_three_times_the_forward_pass():
    model, flops = build(small()), flops_per_sequence(small(), 11)
    with record(model), FlopCounterMode(display=False) as counter:
        model(random_ids(3, 11)).sum().backward()
    assert counter.get_total_flops() == 3 * 3 * (flops.total + flops.masked)


def test_llama_2_7b_flops():
    flops = flops_per_token(LLAMA)
    assert flops.weights == 13_214_154_752 and flops.attention == 2_147_483_648
    assert flops.total == flops.weights + flops.attention
    assert f"{flops.attention / flops.weights:.0%}" == "16%"


# --- Bytes ---


def test_llama_2_7b_bytes():
    assert kv_cache_bytes(LLAMA, tokens=1) == 524_288 and gib(kv_cache_bytes(LLAMA, 1)) == "512 KiB"
    assert gib(kv_cache_bytes(LLAMA, tokens=4096)) == "2 GiB"
    assert gib(kv_cache_bytes(LLAMA, tokens=4096, batch_size=6)) == "12 GiB"
    assert weight_bytes(LLAMA) == 13_476_831_232
    assert (gb(weight_bytes(LLAMA)), gib(weight_bytes(LLAMA))) == ("13.48 GB", "12.55 GiB")
    assert weight_bytes(LLAMA, bytes_per_number=4) == 2 * weight_bytes(LLAMA)


@settings(deadline=None, max_examples=30)
@given(cfg=configs(), batch=st.integers(1, 4), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_cache_bytes_equal_a_real_cache(cfg, batch, dtype):
    cache = KVCache(cfg, batch, cfg.max_seq_len, dtype)
    assert cache.nbytes == kv_cache_bytes(cfg, cfg.max_seq_len, batch, dtype.itemsize)


def kept_by_autograd(model, batch: int, tokens: int) -> int:
    """Bytes of the distinct storages that the backward pass of one training step needs, parameters aside."""
    parameters, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # holding it, so that its address is not used again
        return tensor

    ids = random_ids(batch, tokens, vocab_size=model.cfg.vocab_size)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids, ids) if model.cfg.n_encoder_layers else model(ids)
        F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in parameters)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_kv_heads": 6, "positions": "learned", "norm": "layernorm", "activation": "gelu", "bias": True},
        {"n_kv_heads": 1, "positions": "sinusoidal", "norm_position": "post", "activation": "relu"},
        {"n_encoder_layers": 3, "positions": "rope"},
        {"n_encoder_layers": 3, "positions": "sinusoidal", "norm_position": "post", "norm": "layernorm"},
    ],
    ids=["llama", "gpt2", "post-norm", "encoder-decoder", "paper"],
)
def test_activations_are_what_autograd_keeps(changes, dropout):
    cfg = small(**changes, dropout=dropout, max_seq_len=64, vocab_size=101)
    estimate = training_memory(cfg, tokens=48, batch_size=3).activations
    assert estimate == pytest.approx(kept_by_autograd(build(cfg).train(), 3, 48), rel=0.03)


def test_training_memory_keeps_its_parts_apart():
    cfg = small()
    memory, model = training_memory(cfg, tokens=7, batch_size=3), build(cfg)
    optimizer = torch.optim.AdamW(model.parameters())
    model(random_ids(3, 7)).sum().backward()
    optimizer.step()
    moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert memory.weights == sum(p.nbytes for p in model.parameters())
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters())
    assert memory.moments == sum(m.nbytes for m in moments)
    assert memory.total == memory.weights + memory.gradients + memory.moments + memory.activations


@pytest.mark.parametrize(
    ("n_bytes", "decimal", "binary"),
    [
        (0, "0 bytes", "0 bytes"),
        (999, "999 bytes", "999 bytes"),
        (1000, "1 kB", "1,000 bytes"),
        (1024, "1.02 kB", "1 KiB"),
        (999_999_999, "1 GB", "953.67 MiB"),
        (2**40, "1.1 TB", "1 TiB"),
        (5 * 10**15, "5,000 TB", "4,547.47 TiB"),
    ],
)
def test_units_are_named(n_bytes, decimal, binary):
    assert (gb(n_bytes), gib(n_bytes)) == (decimal, binary)


# --- The table and bad values ---


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_adds_up(name):
    cfg = PRESETS[name]
    table = parameter_table(cfg)
    lines, total = table.split("\n"), count_parameters(cfg).total
    share = [float(line.split()[-1][:-1]) for line in lines if line.endswith("%")]
    assert share[-1] == 100 and sum(share[:-1]) == pytest.approx(100, abs=0.05)
    rules = [i for i, line in enumerate(lines) if set(line) == {"─"}]
    assert all(len(line) <= len(lines[rules[0]]) for line in lines[: rules[1] + 2]), "columns are aligned"
    assert f"{total:,}" in table and f"{2 * total:,} bytes" in table
    assert f"× {cfg.n_layers}" in table and max(map(len, lines)) <= 100


def test_the_table_of_llama_2_7b_has_the_courses_figures():
    table = parameter_table(LLAMA)
    for figure in ("6,738,415,616", "6,476,267,520", "96.11%", "67,108,864", "135,266,304", "8,192", "6,607,077,376",
                   "13.21 GFLOPs", "13,476,831,232 bytes", "12.55 GiB", "512 KiB per token", "2 GiB"):  # fmt: skip
        assert figure in table, figure


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: flops_per_token(small(), context=0), "context must be .* got 0"),
        (lambda: flops_per_sequence(small(), 2.5), "tokens must be .* got 2.5"),
        (lambda: kv_cache_bytes(small(), tokens=-1), "tokens must be .* got -1"),
        (lambda: kv_cache_bytes(small(), 5, batch_size=0), "batch_size must be .* got 0"),
        (lambda: weight_bytes(small(), bytes_per_number="2"), "bytes_per_number must be .* got '2'"),
        (lambda: training_memory(small(), tokens=True), "tokens must be .* got True"),
        (lambda: count_parameters("llama2-7b"), "must be a TransformerConfig; got str"),
        (lambda: kv_cache_bytes(None, 5), "must be a TransformerConfig; got NoneType"),
    ],
)
def test_bad_values_are_refused_with_a_sentence(call, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        call()


def test_a_config_with_other_tensors_is_not_counted_as_if_it_had_these():
    class OtherConfig(TransformerConfig):
        pass

    with pytest.raises(TypeError, match="OtherConfig"):
        count_parameters(OtherConfig(vocab_size=29, d_model=24, n_layers=2, n_heads=6, max_seq_len=19))
