"""What every causal relative must keep of the core: no future, any chunking, padding, generation, recording."""

import copy

import pytest
import torch
from small import left_padding, random_ids
from small_relatives import CAUSAL, build_causal
from torch.testing import assert_close

from transformer_lib import generate, record
from transformer_lib.recording import tap_names

pytestmark = pytest.mark.parametrize("name", sorted(CAUSAL))
NEAR = {"rtol": 1e-4, "atol": 1e-5}  # float32, another order of summation


def test_a_later_token_changes_no_earlier_logit(name):
    model, ids = build_causal(name), random_ids(3, 13)
    changed = ids.clone()
    changed[:, 7] = (ids[:, 7] + 1) % 29
    before, after = model(ids), model(changed)
    assert_close(after[:, :7], before[:, :7], **NEAR)
    assert (after[:, 7:] - before[:, 7:]).abs().amax(dim=(0, 2)).min() > 1e-3  # and every later one does move


@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (5, 1, 7), (2, 3, 8), (12, 1)])
def test_any_chunking_through_the_cache_gives_the_same_logits(name, chunks):
    model, ids = build_causal(name), random_ids(3, 13)
    cache = model.new_cache(3, 13)
    for _ in range(2):  # the second time after a reset
        parts = [model(chunk, cache=cache) for chunk in ids.split(chunks, dim=1)]
        assert_close(torch.cat(parts, dim=1), model(ids), **NEAR)
        assert cache.length == 13
        cache.reset()


@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (6, 1, 6)])
def test_left_padding_changes_no_real_token(name, chunks):
    model, ids, lengths = build_causal(name), random_ids(3, 13), (13, 9, 4)
    keep = left_padding(lengths, 13)
    other = torch.where(keep, ids, (ids + 5) % 29)  # other ids where nothing may look
    cache = model.new_cache(3, 15)
    parts = [model(*pair, cache=cache) for pair in zip(other.split(chunks, 1), keep.split(chunks, 1), strict=True)]
    cached, whole = torch.cat(parts, dim=1), model(ids, keep)
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, -length:])[0]
        assert_close(whole[row, -length:], alone, **NEAR)
        assert_close(cached[row, -length:], alone, **NEAR)


def test_right_padding_changes_no_real_token(name):
    model, ids = build_causal(name), random_ids(3, 13)
    keep = left_padding((13, 9, 4), 13).flip(1)
    whole = model(ids, keep)
    assert_close(whole[1, :9], model(ids[1:2, :9])[0], **NEAR)
    assert_close(whole[2, :4], model(ids[2:3, :4])[0], **NEAR)


def test_generation_with_and_without_cache_is_one(name):
    model, ids, keep = build_causal(name), random_ids(3, 5), left_padding((5, 3, 2), 5)
    with_cache = generate(model, ids, max_new_tokens=11, padding_mask=keep)
    assert torch.equal(with_cache, generate(model, ids, max_new_tokens=11, padding_mask=keep, use_cache=False))


def test_recording_changes_nothing_and_fills_every_name(name):
    model, ids = build_causal(name), random_ids(3, 13)
    with record(model) as seen:
        logits = model(ids)
    assert_close(logits, model(ids), **NEAR)
    assert set(tap_names(model)) - set(seen) == set()


def test_every_parameter_gets_a_gradient_and_the_model_can_be_copied(name):
    model = build_causal(name)
    model(random_ids(4, 17)).logsumexp(-1).mean().backward()
    if hasattr(model, "balance_loss"):
        model.balance_loss()
    assert [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []
    copy.deepcopy(model)


def test_too_many_tokens_for_the_cache_are_refused_before_anything_is_written(name):
    model = build_causal(name)
    cache = model.new_cache(3, 6)
    model(random_ids(3, 5), cache=cache)
    with pytest.raises(ValueError, match="5 of max_len=6"):
        model(random_ids(3, 2), cache=cache)
    fresh = model.new_cache(3, 6)
    model(random_ids(3, 5), cache=fresh)
    last = random_ids(3, 1, seed=4)
    assert_close(model(last, cache=cache), model(last, cache=fresh), rtol=0, atol=0)


def test_a_cache_of_another_kind_is_refused_in_a_sentence(name):
    model = build_causal(name)
    other = build_causal("ssm" if name != "ssm" else "mla").new_cache(3, 13)
    with pytest.raises(TypeError, match="new_cache"):
        model(random_ids(3, 13), cache=other)
