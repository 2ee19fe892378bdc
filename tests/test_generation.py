"""Cache on: other text than cache off; a batch that changes a row; draws that cannot be repeated; cuts off by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import build, left_padding, random_ids, small

from transformer_lib import generate
from transformer_lib.generation import next_token_probabilities


def greedy(model, ids, new):
    """The whole sequence anew at each step, with none of generate's code."""
    for _ in range(new):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("n_kv_heads", [6, 2, 1], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned"])
def test_temperature_zero_is_the_argmax_loop_up_to_max_seq_len(use_cache, n_kv_heads, positions):
    model, ids = build(small(n_kv_heads=n_kv_heads, positions=positions)), random_ids(3, 5)
    out = generate(model, ids, max_new_tokens=14, use_cache=use_cache)
    assert out.shape == (3, 19) and torch.equal(out, greedy(model, ids, 14))


@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_the_last_logits_alone_are_the_last_of_all(positions):
    model, ids = build(small(positions=positions)), random_ids(3, 7)
    keep = left_padding([7, 2, 5], 7)
    expected = model(ids, keep)[:, -1:]
    torch.testing.assert_close(model(ids, keep, last_only=True), expected)
    cache = model.new_cache(3, 7)
    model(ids[:, :4], keep[:, :4], cache=cache, last_only=True)
    torch.testing.assert_close(model(ids[:, 4:], keep[:, 4:], cache=cache, last_only=True), expected)
    translator = build(small(n_encoder_layers=2, positions="sinusoidal"))
    torch.testing.assert_close(translator(ids, ids, last_only=True), translator(ids, ids)[:, -1:])


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_makes_no_logits_that_it_does_not_need(use_cache):
    """A prompt's logits are T · V numbers: 400 MB for 2,048 tokens of SmolLM2's vocabulary."""
    model, shapes = build(small()), []
    model.unembedding.register_forward_hook(lambda layer, inputs, out: shapes.append(tuple(out.shape)))
    generate(model, random_ids(2, 7), max_new_tokens=3, use_cache=use_cache)
    assert shapes == [(2, 1, model.cfg.vocab_size)] * 3


@pytest.mark.parametrize("use_cache", [True, False])
def test_prompts_of_different_lengths_continue_as_each_alone(use_cache):
    model, ids, lengths = build(small()), random_ids(4, 7), [7, 2, 5, 1]
    out = generate(model, ids, max_new_tokens=9, padding_mask=left_padding(lengths, 7), use_cache=use_cache)
    for b, n in enumerate(lengths):
        alone = generate(model, ids[b : b + 1, 7 - n :], max_new_tokens=9)
        assert torch.equal(out[b, 7 - n :], alone[0]), b


@pytest.mark.parametrize("use_cache", [True, False])
def test_an_encoder_decoder_translates_each_row_as_alone(use_cache):
    model = build(small(n_encoder_layers=3, positions="sinusoidal"))
    source, ids, lengths = random_ids(3, 7), random_ids(3, 2, seed=4), [7, 3, 5]
    keep = left_padding(lengths, 7).flip(1)
    out = generate(model, ids, source=source, source_mask=keep, max_new_tokens=6, use_cache=use_cache)
    for b, n in enumerate(lengths):
        expected = ids[b : b + 1]
        for _ in range(6):
            logits = model(source[b : b + 1, :n], expected)
            expected = torch.cat([expected, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(out[b], expected[0])


def test_the_same_seed_draws_the_same_tokens_with_and_without_cache():
    model, ids = build(small()), random_ids(3, 5)
    options = {"max_new_tokens": 12, "temperature": 1.5, "top_k": 20, "top_p": 0.95}
    first = generate(model, ids, seed=7, **options)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(generate(model, ids, seed=7, **options), first)
    assert torch.equal(generate(model, ids, seed=7, use_cache=False, **options), first)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    others = [generate(model, ids, seed=seed, **options) for seed in (8, 9, None, None)]
    assert not any(torch.equal(other, first) for other in others) and not torch.equal(others[2], others[3])


def test_draws_follow_the_probabilities():
    model = build(small())
    ids = random_ids(1, 5).repeat(4000, 1)
    out = generate(model, ids, max_new_tokens=1, temperature=2.0, seed=0)[:, -1]
    expected = torch.softmax(model(ids[:1])[0, -1] / 2.0, dim=-1)
    share = torch.bincount(out, minlength=29) / len(out)
    assert expected.max() < 0.9
    assert (share - expected).abs().max() < 0.04  # five standard deviations of a share of one half in 4,000 draws


# --- top-k and top-p ---


def reference(logits, temperature, top_k, top_p):
    """Token by token, in float64: the k likeliest (the lower id first among equals), then the fewest that reach p."""
    logits = logits.astype(np.float64) / temperature
    p = np.exp(logits - logits.max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept = order[: top_k or len(p)]
    if top_p is not None and top_p < 1:
        total, mass = sum(p[i] for i in kept), 0.0
        for n, i in enumerate(kept, start=1):
            mass += p[i] / total
            if mass >= top_p - 1e-6:
                kept = kept[:n]
                break
    out = np.zeros(len(p))
    out[kept] = p[kept] / p[kept].sum()
    return out


@settings(deadline=None, max_examples=150)
@given(
    logits=st.lists(st.integers(-6, 6), min_size=2, max_size=23),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.one_of(st.none(), st.integers(1, 30)),
    top_p=st.one_of(st.none(), st.floats(0.01, 1.0)),
)
def test_cuts_equal_a_plain_loop(logits, temperature, top_k, top_p):
    """Whole numbers as logits: ties are common, and stay ties in float32."""
    rows = np.stack([np.array(logits, np.float32), np.array(logits[::-1], np.float32)])
    got = next_token_probabilities(torch.tensor(rows), temperature, top_k, top_p).numpy()
    for row, probabilities in zip(rows, got, strict=True):
        expected = reference(row, temperature, top_k, top_p)
        if top_p is not None and ((expected > 0) != (probabilities > 0)).any():
            # A sum that equals p but for rounding may fall on either side; one token more or less is then right.
            near = [reference(row, temperature, top_k, min(1.0, top_p + shift)) for shift in (-1e-5, 1e-5)]
            expected = next((e for e in near if (e > 0).sum() == (probabilities > 0).sum()), expected)
        np.testing.assert_allclose(probabilities, expected, atol=2e-6)


def test_cuts_by_hand():
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))

    def cut(**options):
        return next_token_probabilities(logits, **options)[0]

    def close(actual, *expected):
        torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)

    close(cut(), 0.1, 0.4, 0.2, 0.3)
    close(cut(temperature=0), 0, 1, 0, 0)
    close(cut(top_k=2), 0, 4 / 7, 0, 3 / 7)
    close(cut(top_k=99), 0.1, 0.4, 0.2, 0.3)
    close(cut(top_p=1.0), 0.1, 0.4, 0.2, 0.3)
    close(cut(top_p=0.5), 0, 4 / 7, 0, 3 / 7)
    close(cut(top_p=1e-9), 0, 1, 0, 0)
    close(cut(top_p=1e-300), 0, 1, 0, 0)  # 0 in float32
    close(cut(top_k=3, top_p=0.75), 0, 4 / 7, 0, 3 / 7)  # p counts within the k kept: 4/9 + 3/9 reach 0.75
    close(cut(temperature=0.5), 1 / 30, 16 / 30, 4 / 30, 9 / 30)
    ties = next_token_probabilities(torch.zeros(1, 5), top_k=2)[0]
    close(ties, 0.5, 0.5, 0, 0, 0)  # among equals the lower ids stay, and exactly k of them


def test_p_of_one_cuts_nothing_even_in_a_large_vocabulary():
    """Rounding makes a float32 running sum reach 1 before its end."""
    logits = 3 * torch.randn(5, 50_000, generator=torch.Generator().manual_seed(0))
    assert (next_token_probabilities(logits, top_p=1.0) > 0).all()


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-300])
def test_a_tiny_temperature_is_the_likeliest_token_not_nan(temperature):
    logits = 10 * torch.randn(5, 29, generator=torch.Generator().manual_seed(0))
    expected = next_token_probabilities(logits, 0)
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}):
        assert torch.equal(next_token_probabilities(logits, temperature, **options), expected)


# --- Stopping, streaming, refusing ---


def test_a_finished_row_repeats_its_stop_token_until_all_are_finished():
    model, ids = build(small()), random_ids(3, 5)
    free = greedy(model, ids, 14)[:, 5:]
    stop = [int(free[0, 3]), int(free[1, 6]), int(free[2, 1])]
    out = generate(model, ids, max_new_tokens=14, stop_ids=stop)[:, 5:]
    first = [next(i for i, token in enumerate(row.tolist()) if token in stop) for row in free]
    assert out.shape[1] == max(first) + 1 < 14
    for row, expected, at in zip(out, free, first, strict=True):
        assert torch.equal(row[: at + 1], expected[: at + 1]) and (row[at:] == row[at]).all()


def test_a_stop_token_in_the_prompt_does_not_stop():
    model, ids = build(small()), random_ids(3, 5)
    absent = next(i for i in range(29) if i not in greedy(model, ids, 6)[:, 5:])
    ids[:, -1] = absent
    assert generate(model, ids, max_new_tokens=2, stop_ids=[absent]).shape[1] >= 6


def test_on_token_gets_every_token_as_it_comes():
    model, ids, streamed = build(small()), random_ids(3, 5), []
    out = generate(model, ids, max_new_tokens=6, temperature=1.0, seed=3, on_token=lambda t: streamed.append(t.clone()))
    assert torch.equal(torch.stack(streamed, dim=1), out[:, 5:])


def test_too_long_is_refused_before_any_work():
    model, calls = build(small()), []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=r"5 tokens and max_new_tokens=15 .*max_seq_len=19.* at most 14"):
        generate(model, random_ids(3, 5), max_new_tokens=15, on_token=calls.append)
    assert not calls


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_restored(training):
    model, ids = build(small(dropout=0.5)).train(training), random_ids(3, 5)
    modes = []
    expected = greedy(build(small(dropout=0.5)), ids, 6)
    out = generate(model, ids, max_new_tokens=6, on_token=lambda _: modes.append(model.training))
    assert torch.equal(out, expected) and modes == [False] * 6, "no dropout while generating"

    def fail(_):
        raise RuntimeError("stopped by the reader")

    with pytest.raises(RuntimeError, match="reader"):
        generate(model, ids, max_new_tokens=6, on_token=fail)
    assert model.training is training


def test_what_was_generated_can_be_trained_on():
    model = build(small())
    out = generate(model, random_ids(3, 5), max_new_tokens=4)
    model(out).logsumexp(-1).mean().backward()
    assert model.embedding.weight.grad.isfinite().all() and not out.requires_grad


def test_generation_in_half_precision_uses_a_cache_of_that_type():
    model, ids = build(small()).bfloat16(), random_ids(3, 5)
    assert generate(model, ids, max_new_tokens=4).shape == (3, 9)


def test_the_prompt_is_not_changed():
    model, ids = build(small()), random_ids(3, 5)
    before = ids.clone()
    generate(model, ids, max_new_tokens=4)
    assert torch.equal(ids, before)
