"""Latent attention: absorbed and plain are one, and the cache is as small as the formula says."""

import pytest
import torch
from small import random_ids
from small_relatives import MLA, build_causal
from torch.testing import assert_close

from transformer_lib import record
from transformer_lib.relatives.mla import LatentAttention, mla_bytes_per_token


@pytest.mark.parametrize("t_q", [1, 4, 11])
def test_absorbed_projections_give_the_plain_forms_heads(t_q):
    torch.manual_seed(0)
    layer = LatentAttention(MLA)
    q, q_rope = torch.randn(3, 6, t_q, 8), torch.randn(3, 6, t_q, 4)
    c, k_rope = torch.randn(3, 1, 11, 10), torch.randn(3, 1, 11, 4)
    keep = torch.rand(3, 1, t_q, 11) > 0.3
    plain = layer.plain(q, q_rope, c, k_rope, keep, False)
    assert_close(layer.absorbed(q, q_rope, c, k_rope, keep, False), plain, rtol=1e-4, atol=1e-5)


def test_scores_are_scaled_by_the_width_of_both_parts_of_the_key():
    model, ids = build_causal("mla"), random_ids(3, 13)
    with record(model) as seen:
        model(ids)
    q, k = seen["blocks.1.attention.q"], seen["blocks.1.attention.k"]
    assert q.shape == k.shape == (3, 6, 13, 8 + 4)
    expected = q.double() @ k.double().transpose(-2, -1) / 12**0.5
    assert_close(seen["blocks.1.attention.scores"].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_rotary_part_of_the_key_is_one_for_all_heads_and_the_rest_is_not():
    with record(model := build_causal("mla")) as seen:
        model(random_ids(3, 13))
    content, position = seen["blocks.0.attention.k"].split([8, 4], dim=-1)
    assert torch.equal(position, position[:, :1].expand_as(position))
    assert (content - content[:, :1])[:, 1:].abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measured_bytes_per_token_are_the_formulas(dtype):
    model = build_causal("mla").to(dtype)
    measured = [model.new_cache(3, length).nbytes for length in (7, 12)]
    per_token = mla_bytes_per_token(MLA, bytes_per_number=dtype.itemsize)
    assert per_token == 2 * (10 + 4) * dtype.itemsize
    assert measured == [3 * 7 * per_token, 3 * 12 * per_token]


def test_what_is_cached_is_the_latent_and_nothing_else():
    model, ids = build_causal("mla"), random_ids(3, 13)
    cache = model.new_cache(3, 13)
    with record(model) as seen:
        model(ids)
    model(ids, cache=cache)
    assert_close(cache.values[1], seen["blocks.1.attention.latent"], rtol=1e-4, atol=1e-5)
    held = sum(value.nbytes for value in vars(cache).values() if isinstance(value, torch.Tensor))
    assert held == cache.nbytes + cache.keep.nbytes


@pytest.mark.parametrize("wrong", [{"d_latent": 0}, {"d_rope": 3}, {"positions": "learned"}, {"n_kv_heads": 2}])
def test_a_shape_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        MLA.replace(**wrong)
