"""ALiBi as a choice of the config: its slopes, its distances, and that every path through the model agrees."""

import pytest
import torch
from small import build, left_padding, random_ids, small
from torch.testing import assert_close

from transformer_lib import generate, record
from transformer_lib.positions import alibi

NEAR = {"rtol": 1e-4, "atol": 1e-5}
CFG = small(positions="alibi")


def test_slopes_are_the_papers():
    bias = alibi(8, 5, 5)
    expected = torch.tensor([2.0**-h for h in range(1, 9)])  # 8 heads: 1/2, 1/4 … 1/256
    assert_close(-bias[:, 4, 3], expected)
    assert_close(-bias[:, 4, 1], 3 * expected)
    assert_close(-alibi(6, 5, 5)[:, 1, 0], 2 ** (-8 * torch.arange(1, 7) / 6))


def test_fewer_queries_than_keys_are_the_last_ones():
    assert torch.equal(alibi(6, 3, 11), alibi(6, 11, 11)[:, -3:])
    assert torch.equal(alibi(6, 1, 11), alibi(6, 11, 11)[:, -1:])


def test_padding_does_not_count_as_distance():
    keep = torch.tensor([[False, True, True, False, True]])
    alone = alibi(6, 3, 3)
    assert_close(alibi(6, 5, 5, keep)[0][:, [1, 2, 4]][:, :, [1, 2, 4]], alone)


def test_recorded_weights_are_softmax_of_scores_plus_bias():
    model, ids = build(CFG), random_ids(3, 13)
    with record(model) as seen:
        model(ids)
    scores = seen["blocks.1.attention.scores"] + alibi(6, 13, 13)
    future = torch.ones(13, 13, dtype=torch.bool).triu(1)
    assert_close(seen["blocks.1.attention.weights"], scores.masked_fill(future, -torch.inf).softmax(-1), **NEAR)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_fused_and_readable_paths_agree(causal, padded):
    model, ids = build(CFG.replace(causal=causal)), random_ids(3, 13)
    keep = left_padding((13, 9, 4), 13) if padded else None
    fused = model(ids, keep)
    with record(model):
        readable = model(ids, keep)
    real = keep if padded else torch.ones_like(ids, dtype=torch.bool)
    assert_close(readable[real], fused[real], **NEAR)
    assert bool(fused.isfinite().all()) and bool(readable.isfinite().all())


@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (5, 1, 7), (2, 3, 8)])
def test_any_chunking_with_and_without_padding(chunks):
    model, ids, lengths = build(CFG), random_ids(3, 13), (13, 9, 4)
    for keep in (None, left_padding(lengths, 13)):
        cache = model.new_cache(3, 13)
        keeps = [None] * len(chunks) if keep is None else keep.split(chunks, 1)
        cached = torch.cat([model(*pair, cache=cache) for pair in zip(ids.split(chunks, 1), keeps, strict=True)], 1)
        for row, length in enumerate(lengths if keep is not None else (13, 13, 13)):
            assert_close(cached[row, -length:], model(ids[row : row + 1, -length:])[0], **NEAR)


def test_a_later_token_changes_no_earlier_logit():
    model, ids = build(CFG), random_ids(3, 13)
    changed = ids.clone()
    changed[:, 7] = (ids[:, 7] + 1) % 29
    assert_close(model(changed)[:, :7], model(ids)[:, :7], rtol=0, atol=0)


def test_order_matters():
    model, ids = build(CFG), random_ids(3, 13)
    swapped = ids[:, [1, 0, *range(2, 13)]]
    last = (model(swapped) - model(ids))[:, -1].abs().max()
    assert last > 1e-3
    none = build(CFG.replace(positions="none", n_layers=1))
    assert_close(none(swapped)[:, -1], none(ids)[:, -1], **NEAR)  # without positions one block cannot tell


def test_encoder_decoder_pads_both_sides():
    model = build(CFG.replace(n_encoder_layers=2))
    source, target = random_ids(3, 11), random_ids(3, 7, seed=2)
    keep = left_padding((11, 6, 3), 11).flip(1)
    whole = model(source, target, keep)
    assert_close(whole[2], model(source[2:, :3], target[2:])[0], **NEAR)
    cache = model.new_cache(3, 7)
    stepwise = [model(source, token, keep, cache=cache) for token in target.split(1, dim=1)]
    assert_close(torch.cat(stepwise, dim=1), whole, **NEAR)


def test_generation_with_and_without_cache_is_one():
    model, ids, keep = build(CFG), random_ids(3, 5), left_padding((5, 3, 2), 5)
    with_cache = generate(model, ids, max_new_tokens=11, padding_mask=keep)
    assert torch.equal(with_cache, generate(model, ids, max_new_tokens=11, padding_mask=keep, use_cache=False))


def test_half_precision_stays_in_its_dtype():
    model = build(CFG).to(torch.bfloat16)
    with record(model) as seen:
        model(random_ids(3, 13))
    assert seen["blocks.0.attention.output"].dtype == torch.bfloat16
