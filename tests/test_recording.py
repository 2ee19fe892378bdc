"""What is recorded has the promised name and shape; looking changes nothing; an edit is what the model then uses."""

import pytest
import torch
from small import build, left_padding, random_ids, small

from transformer_lib import KVCache, edit, generate, record
from transformer_lib.recording import tap_names, zero, zero_head

B, T, S = 3, 7, 5
D, H, KV, DK, FF, V = 24, 6, 2, 8, 40, 29


def attention_shapes(path, queries, keys):
    return {
        f"{path}.norm": (B, queries, D),
        f"{path}.q": (B, H, queries, DK),
        f"{path}.k": (B, KV, keys, DK),
        f"{path}.v": (B, KV, keys, DK),
        f"{path}.scores": (B, H, queries, keys),
        f"{path}.weights": (B, H, queries, keys),
        f"{path}.heads": (B, queries, H, DK),
        f"{path}.output": (B, queries, D),
    }


def block_shapes(path, length, source=None):
    shapes = attention_shapes(f"{path}.attention", length, length)
    if source is not None:
        shapes |= attention_shapes(f"{path}.cross_attention", length, source)
    rest = {f"{path}.mlp.norm": D, f"{path}.mlp.hidden": FF, f"{path}.mlp.output": D, f"{path}.stream": D}
    return shapes | {name: (B, length, width) for name, width in rest.items()}


def expected_shapes(cfg):
    final = cfg.norm_position == "pre"
    source = S if cfg.n_encoder_layers else None
    shapes = {"embedding": (B, T, D), "logits": (B, T, V)} | ({"final_norm": (B, T, D)} if final else {})
    for i in range(cfg.n_layers):
        shapes |= block_shapes(f"blocks.{i}", T, source)
    if source is not None:
        shapes |= {"encoder.embedding": (B, S, D)} | ({"encoder.final_norm": (B, S, D)} if final else {})
    for i in range(cfg.n_encoder_layers):
        shapes |= block_shapes(f"encoder.blocks.{i}", S)
    return shapes


KINDS = {
    "decoder-only": small(),
    "decoder-only, post-norm": small(norm_position="post", norm="layernorm", activation="relu", positions="learned"),
    "encoder-only": small(causal=False, positions="sinusoidal", activation="gelu"),
    "encoder-decoder": small(n_encoder_layers=3),
    "encoder-decoder, post-norm": small(n_encoder_layers=3, norm_position="post", positions="sinusoidal"),
}


def inputs(cfg):
    return (random_ids(B, S), random_ids(B, T, seed=2)) if cfg.n_encoder_layers else (random_ids(B, T),)


@pytest.mark.parametrize("cfg", KINDS.values(), ids=KINDS)
def test_names_and_shapes_are_the_promised_ones(cfg):
    model = build(cfg)
    with record(model) as seen:
        logits = model(*inputs(cfg))
    assert {name: tuple(value.shape) for name, value in seen.items()} == expected_shapes(cfg)
    assert set(tap_names(model)) == set(seen), "tap_names lists them without a forward pass"
    assert torch.equal(seen["logits"], logits)


@pytest.mark.parametrize("cfg", KINDS.values(), ids=KINDS)
def test_recording_leaves_nothing_behind(cfg):
    model = build(cfg)
    before = model(*inputs(cfg))
    with record(model) as seen:
        model(*inputs(cfg))
    assert all(layer.listener is None for layer in model.modules() if hasattr(layer, "listener"))
    noted = {name: value.clone() for name, value in seen.items()}
    assert torch.equal(model(*inputs(cfg)), before), "bit for bit the fused path again"
    assert all(torch.equal(seen[name], value) for name, value in noted.items()), "and nothing more is noted"


@pytest.mark.parametrize("cfg", [KINDS["decoder-only"], KINDS["encoder-decoder"]], ids=["decoder", "encoder-decoder"])
def test_the_ledger_stream_is_embedding_plus_all_outputs(cfg):
    model = build(cfg)
    with record(model) as seen:
        model(*inputs(cfg))
    for stack, layers in (("", cfg.n_layers), ("encoder.", cfg.n_encoder_layers)):
        if not layers:
            continue
        total = seen[f"{stack}embedding"].clone()
        for i in range(layers):
            for sublayer in ("attention", "cross_attention", "mlp"):
                total += seen.get(f"{stack}blocks.{i}.{sublayer}.output", 0)
            torch.testing.assert_close(total, seen[f"{stack}blocks.{i}.stream"], atol=1e-4, rtol=1e-5)


def test_recorded_numbers_are_consistent_with_each_other():
    model = build(small(n_kv_heads=6))
    with record(model) as seen:
        model(random_ids(B, T))
    path = "blocks.1.attention"
    q, k, v, weights = (seen[f"{path}.{name}"] for name in ("q", "k", "v", "weights"))
    torch.testing.assert_close(seen[f"{path}.scores"], q @ k.transpose(-2, -1) / 8**0.5, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T), atol=1e-5, rtol=0)
    assert (weights.triu(1) == 0).all() and (seen[f"{path}.scores"].triu(1) != 0).any(), "scores are before the mask"
    torch.testing.assert_close(seen[f"{path}.heads"], (weights @ v).transpose(1, 2), atol=1e-4, rtol=1e-5)
    output = model.blocks[1].attention.w_o(seen[f"{path}.heads"].flatten(2))
    torch.testing.assert_close(seen[f"{path}.output"], output, atol=1e-5, rtol=1e-5)


def test_copies_are_detached_and_a_second_forward_overwrites():
    model = build(small())
    with record(model) as seen:
        logits = model(random_ids(B, T))
        first = seen["logits"]
        assert not any(value.requires_grad for value in seen.values())
        with torch.no_grad():
            logits.zero_()
        assert (first != 0).any(), "a copy, not a view"
        model(random_ids(B, 4))
    assert seen["logits"].shape == (B, 4, V) and first.shape == (B, T, V)


def test_grad_keeps_the_live_tensors():
    model = build(small())
    with record(model, grad=True) as seen:
        model(random_ids(B, T)).square().mean().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in seen.values())
    assert seen["blocks.0.attention.weights"].grad.shape == (B, H, T, T)


# --- Edits ---


@pytest.mark.parametrize("cfg", KINDS.values(), ids=KINDS)
def test_an_edit_of_any_name_is_seen_downstream(cfg):
    model = build(cfg)
    clean = model(*inputs(cfg))
    for name in tap_names(model):
        with edit(model, {name: lambda value: value.flip(-1) + 0.5 * value}):
            edited = model(*inputs(cfg))
        assert (edited - clean).abs().max() > 1e-3, name
    assert torch.equal(model(*inputs(cfg)), clean)


@pytest.mark.parametrize("order", ["record outside", "record inside"])
def test_record_shows_what_the_model_really_used(order):
    model, ids = build(small()), random_ids(B, T)
    changes = {"blocks.0.attention.weights": lambda w: torch.full_like(w, 0.25), "blocks.1.mlp.output": zero}
    if order == "record outside":
        with record(model) as seen, edit(model, changes):
            logits = model(ids)
    else:
        with edit(model, changes), record(model) as seen:
            logits = model(ids)
    assert (seen["blocks.0.attention.weights"] == 0.25).all() and (seen["blocks.1.mlp.output"] == 0).all()
    v = seen["blocks.0.attention.v"].repeat_interleave(H // KV, dim=1).sum(dim=2, keepdim=True) * 0.25
    expected = v.expand(-1, -1, T, -1).transpose(1, 2)
    torch.testing.assert_close(seen["blocks.0.attention.heads"], expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(seen["logits"], logits)


def test_nested_records_and_edits_all_take_effect():
    model, ids = build(small()), random_ids(B, T)
    double = {"embedding": lambda x: 2 * x}
    with record(model) as outer, edit(model, double), record(model) as inner, edit(model, double):
        model(ids)
    clean = model.embedding(ids)
    for seen in (outer, inner):
        torch.testing.assert_close(seen["embedding"], 4 * clean)
        assert set(seen) == set(tap_names(model))


def test_an_edit_in_place_changes_neither_weights_nor_cache():
    model, ids = build(small()), random_ids(B, T)

    def wipe(value):
        return value.zero_()

    cache = KVCache(model.cfg, B, T)
    with edit(model, {"blocks.0.attention.k": wipe, "blocks.1.attention.q": wipe, "blocks.1.stream": wipe}):
        model(ids, cache=cache).sum().backward()
    assert (cache.keys[0] != 0).any(), "the cache keeps what the model computed"


def test_a_cached_edit_equals_the_uncached():
    model, ids = build(small()), random_ids(B, T)
    for changes in ({"blocks.0.attention.k": lambda k: 2 * k}, {"blocks.1.attention.heads": zero_head(1, 4)}):
        with edit(model, changes):
            cache = KVCache(model.cfg, B, T)
            chunks = [model(ids[:, :4], cache=cache), model(ids[:, 4:], cache=cache)]
            torch.testing.assert_close(torch.cat(chunks, dim=1), model(ids), atol=1e-4, rtol=1e-4)


def test_zero_head_silences_these_heads_alone():
    model, ids = build(small()), random_ids(B, T)
    with edit(model, {"blocks.0.attention.heads": zero_head(1, 4)}), record(model) as seen:
        model(ids)
    silent = (seen["blocks.0.attention.heads"] == 0).all(dim=-1).all(dim=1).all(dim=0)
    assert silent.tolist() == [False, True, False, False, True, False]


# --- Errors ---


def test_an_exception_inside_leaves_no_listener():
    model, ids = build(small()), random_ids(B, T)
    before = model(ids)
    for context in (lambda: record(model), lambda: edit(model, {"logits": zero})):
        with pytest.raises(RuntimeError, match="mine"), context():
            raise RuntimeError("mine")
        with pytest.raises(ValueError, match="max_seq_len"), context():
            model(random_ids(B, 20))
        assert torch.equal(model(ids), before)
        assert all(layer.listener is None for layer in model.modules() if hasattr(layer, "listener"))
    with record(model) as seen:
        with pytest.raises(RuntimeError), edit(model, {"logits": zero}):
            raise RuntimeError
        model(ids)
    assert (seen["logits"] != 0).any(), "the inner one is gone, the outer one is still there"


def test_an_unknown_name_is_answered_with_the_nearest():
    model = build(small())
    near = r"blocks\.0\.attention\.weight'.*blocks\.0\.attention\.weights"
    with record(model) as seen:
        with pytest.raises(KeyError, match=r"not recorded yet"):
            seen["logits"]
        model(random_ids(B, T))
    with pytest.raises(KeyError, match=near):
        seen["blocks.0.attention.weight"]
    with pytest.raises(KeyError, match=near), edit(model, {"blocks.0.attention.weight": zero}):
        pass
    with pytest.raises(KeyError, match=r"cross_attention"), edit(model, {"blocks.0.cross_attention.q": zero}):
        pass


@pytest.mark.parametrize(
    ("change", "got"),
    [(lambda x: x[:, :2], r"\(3, 2, 24\)"), (lambda x: None, "NoneType"), (lambda x: x[..., None], r"\(3, 7, 24, 1\)")],
)
def test_an_edit_of_the_wrong_shape_is_refused(change, got):
    model = build(small())
    with (
        pytest.raises(ValueError, match=rf"'blocks.1.stream' must return .*\(3, 7, 24\); got {got}"),
        edit(model, {"blocks.1.stream": change}),
    ):
        model(random_ids(B, T))


def test_generation_and_padding_are_recorded_too():
    model, keep = build(small()), left_padding([7, 3, 5], T)
    with record(model) as seen:
        generate(model, random_ids(B, T), max_new_tokens=4, padding_mask=keep)
    assert seen["blocks.0.attention.weights"].shape == (B, H, 1, T + 3), "the last step: one query, all keys so far"
    assert (seen["blocks.0.attention.weights"][1, :, :, :4] == 0).all(), "no weight on padding"
