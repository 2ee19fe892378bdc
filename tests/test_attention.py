"""Masks that leak, masks that divide by zero, padding that is seen, two attention paths that differ.

Tolerances: float32 rounding of values of order 1 to 10, unless equality is bit for bit.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small import build, left_padding, random_ids, small

from transformer_lib import KVCache, attention, record
from transformer_lib.attention import MultiHeadAttention, attention_weights, causal_mask, scaled_dot_product_attention
from transformer_lib.positions import rotate, rotation

CLOSE = {"atol": 2e-5, "rtol": 1e-5}
SHARINGS = {"MHA": 6, "GQA": 2, "MQA": 1}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def in_the_open(module, *args, **kwargs):
    with record(module):
        return module(*args, **kwargs)


# --- The fused path equals the readable path ---


@settings(deadline=None, max_examples=40)
@given(
    kv_heads=st.sampled_from([6, 2, 1]),
    t_q=st.integers(1, 9),
    earlier=st.integers(0, 7),
    kind=st.sampled_from(["none", "causal", "padding", "both", "arbitrary"]),
    seed=st.integers(0, 10_000),
)
def test_fused_equals_readable_for_every_mask_shape_and_cache_state(kv_heads, t_q, earlier, kind, seed):
    torch.manual_seed(seed)
    cfg = small(n_kv_heads=kv_heads, bias=True)
    module, t_k = MultiHeadAttention(cfg), earlier + t_q
    x = 2 * torch.randn(3, t_q, cfg.d_model)
    past_k, past_v = torch.randn(2, 3, kv_heads, earlier, cfg.d_k).unbind(0)
    keep = torch.rand(3, t_k) < 0.7
    if kind == "arbitrary":
        mask, causal = torch.rand(3, 6, t_q, t_k) < 0.6, False
    else:
        mask, causal = attention.visible_pairs(
            t_q, t_k, kind in ("causal", "both"), keep if kind in ("padding", "both") else None
        )
    outputs = []
    for run in (module, partial(in_the_open, module)):
        cache = KVCache(cfg, 3, cfg.max_seq_len)
        cache.append(1, past_k, past_v)
        cache.advance(earlier)
        outputs.append(run(x, mask=mask, causal=causal, cache=cache, layer=1))
    torch.testing.assert_close(*outputs, **CLOSE)
    assert outputs[0].shape == (3, t_q, cfg.d_model)


@pytest.mark.parametrize("n_kv_heads", SHARINGS.values(), ids=SHARINGS)
@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
@pytest.mark.parametrize("causal", [True, False])
def test_recording_a_model_does_not_change_its_logits(n_kv_heads, positions, causal):
    model, ids = build(small(n_kv_heads=n_kv_heads, positions=positions, causal=causal)), random_ids(3, 11)
    for keep in (None, left_padding([11, 4, 7], 11), left_padding([11, 4, 7], 11).flip(1)):
        torch.testing.assert_close(in_the_open(model, ids, padding_mask=keep), model(ids, padding_mask=keep), **CLOSE)


def test_cross_attention_fused_equals_readable():
    cfg = small(n_encoder_layers=3, positions="sinusoidal")
    model, source, target = build(cfg), random_ids(3, 7), random_ids(3, 5, seed=2)
    masks = {"source_mask": left_padding([7, 2, 5], 7), "target_mask": left_padding([5, 5, 3], 5)}
    torch.testing.assert_close(in_the_open(model, source, target, **masks), model(source, target, **masks), **CLOSE)


def test_readable_attention_equals_torchs_for_any_leading_shape():
    q, k, v = randn(2, 3, 5, 4, 8), randn(2, 3, 5, 7, 8, seed=1), randn(2, 3, 5, 7, 6, seed=2)
    mask = causal_mask(4, 7)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v), **CLOSE)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask, scale=0.7), expected, **CLOSE)


# --- The causal mask ---


def test_the_causal_mask_is_aligned_at_the_bottom_right():
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert causal_mask(2, 5).tolist() == [[True, True, True, True, False], [True] * 5]
    assert causal_mask(1, 4).tolist() == [[True] * 4], "the newest token sees every key, not the first alone"
    assert int(causal_mask(9).sum()) == 9 * 10 // 2


def leaky_weights(q, k, mask=None, scale=None, tap=None):
    """The famous fault: a large negative number in place of −∞."""
    scores = q @ k.transpose(-2, -1) * scale
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e4), dim=-1)


def with_scores_of(cfg, size: float):
    """A model whose scores are `size` times larger than ordinary ones."""
    model = build(cfg)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.w_q.weight *= size
    return model


def prefix_changes(run, ids, changed, prefix: int) -> float:
    """The largest change of the logits before `prefix` when only ids from `prefix` on change: 0 if nothing leaks."""
    assert torch.equal(ids[:, :prefix], changed[:, :prefix]) and (ids[:, prefix:] != changed[:, prefix:]).all()
    with torch.no_grad():
        return float((run(ids)[:, :prefix] - run(changed)[:, :prefix]).abs().max())


def in_two_chunks(model, first: int):
    def run(ids):
        cache = KVCache(model.cfg, len(ids), ids.shape[1])
        return torch.cat([model(ids[:, :first], cache=cache), model(ids[:, first:], cache=cache)], dim=1)

    return run


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
@pytest.mark.parametrize("size", [1, 1e6], ids=["ordinary scores", "scores far beyond −1e4"])
@pytest.mark.parametrize("n_kv_heads", SHARINGS.values(), ids=SHARINGS)
def test_no_position_sees_its_future_bit_for_bit(positions, size, n_kv_heads):
    model = with_scores_of(small(positions=positions, n_kv_heads=n_kv_heads), size)
    ids = random_ids(3, 13)
    with record(model) as seen:
        model(ids)
    assert (seen["blocks.0.attention.scores"].min() < -1e4) == (size > 1), "the scores are of the stated size"
    for prefix in (1, 6, 12):
        changed = ids.clone()
        changed[:, prefix:] = (changed[:, prefix:] + 5) % 29
        assert prefix_changes(model, ids, changed, prefix) == 0
        assert prefix_changes(lambda x: in_the_open(model, x), ids, changed, prefix) == 0
        assert prefix_changes(in_two_chunks(model, 4), ids, changed, prefix) == 0


def test_a_finite_mask_value_would_be_caught(monkeypatch):
    """−1e4 passes the perturbation test at ordinary scores, and lets the future in at large ones."""
    monkeypatch.setattr(attention, "attention_weights", leaky_weights)
    ids = random_ids(3, 13)
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 5) % 29
    ordinary, large = with_scores_of(small(), 1), with_scores_of(small(), 1e6)
    assert prefix_changes(lambda x: in_the_open(ordinary, x), ids, changed, 6) == 0
    assert prefix_changes(lambda x: in_the_open(large, x), ids, changed, 6) > 0.1


def test_the_decoder_sees_no_future_target_but_all_of_the_source():
    model = build(small(n_encoder_layers=2, positions="sinusoidal", norm="layernorm", activation="relu"))
    source, target = random_ids(3, 7), random_ids(3, 9, seed=2)
    later = target.clone()
    later[:, 4:] = (later[:, 4:] + 3) % 29
    assert torch.equal(model(source, target)[:, :4], model(source, later)[:, :4])
    other = source.clone()
    other[:, -1] = (other[:, -1] + 3) % 29
    assert ((model(source, target) - model(other, target)).abs().amax(dim=(0, 2)) > 1e-3).all()


# --- Rows that may see nothing ---


@pytest.mark.parametrize("path", ["fused", "readable"])
@pytest.mark.parametrize("n_kv_heads", SHARINGS.values(), ids=SHARINGS)
def test_a_row_with_every_key_masked_gives_zeros_and_finite_gradients(path, n_kv_heads):
    cfg = small(n_kv_heads=n_kv_heads)
    torch.manual_seed(0)
    module = MultiHeadAttention(cfg)  # no bias: zero heads give a zero output
    x = torch.randn(3, 5, cfg.d_model, requires_grad=True)
    mask = torch.rand(3, 6, 5, 5) < 0.5
    mask[1, :, 2] = False  # query 2 of row 1 sees nothing, in every head
    mask[2] = False  # nothing in row 2 sees anything
    out = module(x, mask=mask) if path == "fused" else in_the_open(module, x, mask=mask)
    assert (out[1, 2] == 0).all() and (out[2] == 0).all() and (out[0] != 0).any()
    out.square().sum().backward()
    gradients = [x.grad, *(p.grad for p in module.parameters())]
    assert all(g.isfinite().all() for g in gradients)


def test_weights_are_rows_that_sum_to_one_or_are_zero():
    mask = torch.rand(4, 3, 6, 7, generator=torch.Generator().manual_seed(0)) < 0.3
    weights = attention_weights(randn(4, 3, 6, 8), randn(4, 3, 7, 8, seed=1), mask)
    assert (weights >= 0).all() and (weights[~mask] == 0).all()
    seeing = mask.any(dim=-1)
    assert not seeing.all(), "the case with nothing to see is among them"
    torch.testing.assert_close(weights.sum(dim=-1), seeing.float(), atol=1e-6, rtol=0)


def test_a_row_of_nothing_but_padding_stays_finite_and_alone():
    model, ids = build(small()), random_ids(3, 7)
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[1] = False
    for logits in (model(ids, padding_mask=keep), in_the_open(model, ids, padding_mask=keep)):
        assert logits.isfinite().all()
        torch.testing.assert_close(logits[[0, 2]], model(ids)[[0, 2]], **CLOSE)


# --- Padding ---


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
def test_padding_changes_neither_output_nor_loss_nor_gradient(side, causal, positions):
    model, lengths, width = build(small(causal=causal, positions=positions, norm="layernorm")), [4, 9, 6], 11
    keep = left_padding(lengths, width) if side == "left" else left_padding(lengths, width).flip(1)
    ids, targets = random_ids(3, width), random_ids(3, width, seed=2)

    def run(rows):
        model.zero_grad()
        loss = sum(F.cross_entropy(model(x, padding_mask=m)[k], y[k], reduction="sum") for x, m, k, y in rows)
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    alone = [(ids[b : b + 1, keep[b]], None, torch.ones(1, n, dtype=torch.bool), targets[b : b + 1, keep[b]])
             for b, n in enumerate(lengths)]  # fmt: skip
    (loss, grads), (loss_alone, grads_alone) = run([(ids, keep, keep, targets)]), run(alone)
    torch.testing.assert_close(loss, loss_alone, atol=0, rtol=1e-5)
    for name, grad in grads_alone.items():
        torch.testing.assert_close(grads[name], grad, atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    logits = model(ids, padding_mask=keep)
    for b, row in enumerate(alone):
        torch.testing.assert_close(logits[b, keep[b]], model(row[0])[0], **CLOSE)
    other = torch.where(keep, ids, (ids + 7) % 29)  # what stands in the padding does not matter, to the last bit
    assert torch.equal(model(other, padding_mask=keep)[keep], logits[keep])


def test_padding_of_source_and_target_does_not_reach_the_decoder():
    model = build(small(n_encoder_layers=2, positions="sinusoidal", norm_position="post", norm="layernorm"))
    source, target = random_ids(3, 9), random_ids(3, 7, seed=2)
    keep_s, keep_t = left_padding([9, 3, 6], 9).flip(1), left_padding([5, 7, 2], 7)
    logits = model(source, target, source_mask=keep_s, target_mask=keep_t)
    for b in range(3):
        alone = model(source[b : b + 1, keep_s[b]], target[b : b + 1, keep_t[b]])
        torch.testing.assert_close(logits[b, keep_t[b]], alone[0], **CLOSE)


# --- What attention knows of order ---


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_without_mask_and_positions_attention_has_no_notion_of_order(norm_position):
    model = build(small(causal=False, positions="none", norm_position=norm_position))
    ids, order = random_ids(3, 11), torch.randperm(11, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(model(ids[:, order]), model(ids)[:, order], **CLOSE)
    for changes in ({"causal": True}, {"positions": "sinusoidal"}, {"positions": "rope"}):
        ordered = build(model.cfg.replace(**changes))
        assert (ordered(ids[:, order]) - ordered(ids)[:, order]).abs().max() > 0.1, changes


def test_rope_scores_depend_on_offsets_only():
    q, k = randn(3, 2, 7, 8), randn(3, 2, 7, 8, seed=1)

    def scores(shift):
        turn = rotation(torch.arange(7) + shift, 8)
        return rotate(q, *turn) @ rotate(k, *turn).transpose(-2, -1)

    for shift in (1, 13, 100):
        torch.testing.assert_close(scores(shift), scores(0), atol=1e-4, rtol=1e-4)  # float32 angles up to 100
    assert (scores(0) - q @ k.transpose(-2, -1)).abs().max() > 0.1
    torch.testing.assert_close(rotate(q, *rotation(torch.arange(7), 8)).norm(dim=-1), q.norm(dim=-1))


def test_scores_are_scaled_by_the_width_of_a_head():
    for scale_scores, expected in ((True, 1 / math.sqrt(8)), (False, 1.0)):
        model = build(small(scale_scores=scale_scores, n_kv_heads=6))
        with record(model) as seen:
            logits = model(random_ids(3, 5))
        q, k = seen["blocks.1.attention.q"], seen["blocks.1.attention.k"]
        torch.testing.assert_close(seen["blocks.1.attention.scores"], q @ k.transpose(-2, -1) * expected, **CLOSE)
        torch.testing.assert_close(model(random_ids(3, 5)), logits, **CLOSE)


def test_query_heads_share_key_value_heads_in_order():
    """Heads 0–2 read key/value head 0, heads 3–5 head 1: changing w_v of head 1 changes heads 3–5 alone."""
    model, ids = build(small(n_layers=1)), random_ids(3, 5)
    heads = []
    for _ in range(2):
        with record(model) as seen:
            model(ids)
        heads.append(seen["blocks.0.attention.heads"])
        with torch.no_grad():
            model.blocks[0].attention.w_v.weight[8:] += 1.0
    changed = (heads[0] - heads[1]).abs().amax(dim=(0, 1, 3)) > 0
    assert changed.tolist() == [False] * 3 + [True] * 3
