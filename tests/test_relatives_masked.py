"""Masked encoder and masked diffusion: what is hidden, what counts, and that the bound is one."""

import itertools
import math

import pytest
import torch
from small import left_padding, random_ids
from small_relatives import MASKED, build_masked
from torch.testing import assert_close

from transformer_lib.losses import token_losses
from transformer_lib.relatives.diffusion import diffusion_bound, diffusion_loss, hide, unmask
from transformer_lib.relatives.masked_encoder import MaskedTransformer, mask_tokens, masked_loss


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_both_sides_are_seen_and_the_mask_is_never_predicted():
    model, ids = build_masked(), random_ids(3, 13, vocab_size=28)
    assert model.mask_id == 28 and model(ids).shape == (3, 13, 28)
    changed = ids.clone()
    changed[:, 9] = model.mask_id
    assert (model(changed) - model(ids)).abs().amax(dim=(0, 2)).min() > 1e-3  # every position, before and after


def test_a_config_with_the_causal_mask_is_refused():
    with pytest.raises(ValueError, match="causal=False"):
        MaskedTransformer(MASKED.replace(causal=True))


def test_of_the_chosen_eighty_percent_are_masked_ten_random_ten_kept():
    ids = random_ids(200, 300, vocab_size=28)
    corrupted, chosen = mask_tokens(ids, 28, share=0.15, generator=seeded())
    n = int(chosen.sum())
    assert abs(n / ids.numel() - 0.15) < 0.005
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert abs(int((corrupted[chosen] == 28).sum()) / n - 0.8) < 0.015
    kept = int((corrupted[chosen] == ids[chosen]).sum()) / n
    assert abs(kept - (0.1 + 0.1 / 28)) < 0.015  # a random token may be the right one
    assert corrupted.max() == 28 and corrupted.min() >= 0


def test_padding_is_never_chosen():
    ids, keep = random_ids(3, 13, vocab_size=28), left_padding((13, 9, 4), 13)
    corrupted, chosen = mask_tokens(ids, 28, share=1.0, keep=keep, generator=seeded())
    assert torch.equal(chosen, keep) and torch.equal(corrupted[~keep], ids[~keep])


def test_the_loss_counts_the_chosen_tokens_alone():
    model, ids = build_masked(), random_ids(3, 13, vocab_size=28)
    corrupted, chosen = mask_tokens(ids, 28, 0.3, generator=seeded(3))
    expected = token_losses(model(corrupted), ids)[chosen].mean()
    assert_close(masked_loss(model, ids, 0.3, generator=seeded(3)), expected, rtol=1e-5, atol=1e-6)


def test_hiding_follows_each_rows_own_time():
    ids = random_ids(3, 4000, vocab_size=28)
    noisy, hidden = hide(ids, torch.tensor([0.1, 0.5, 1.0]), 28, seeded())
    assert_close(hidden.float().mean(dim=1), torch.tensor([0.1, 0.5, 1.0]), rtol=0, atol=0.03)
    assert bool((noisy[hidden] == 28).all()) and torch.equal(noisy[~hidden], ids[~hidden])


@torch.no_grad()
def losses_of_every_mask(model, ids):
    """For one row of T tokens: {which are hidden: their losses}, over all 2^T − 1 masks."""
    length = ids.shape[1]
    masks = [torch.tensor(bits) for bits in itertools.product([False, True], repeat=length) if any(bits)]
    noisy = torch.stack([torch.where(mask, model.mask_id, ids[0]) for mask in masks])
    losses = token_losses(model(noisy), ids.expand(len(masks), -1))
    return {tuple(mask.tolist()): loss[mask].double() for mask, loss in zip(masks, losses, strict=True)}


def exact_bound(model, ids) -> float:
    """The bound without any random draw: hidden counts equally likely, sets of one count equally likely."""
    length = ids.shape[1]
    every = losses_of_every_mask(model, ids)
    return sum(float(loss.mean()) / (length * math.comb(length, sum(mask))) for mask, loss in every.items())


def test_the_bound_is_the_mean_over_all_orders_of_writing_and_lies_above_the_true_information():
    model, ids = build_masked(), random_ids(1, 5, vocab_size=28)
    every = losses_of_every_mask(model, ids)
    totals = []
    for order in itertools.permutations(range(5)):  # −ln p of writing the tokens one by one in this order
        hidden, total = [True] * 5, 0.0
        for place in order:
            losses = every[tuple(hidden)]
            total += float(losses[sum(hidden[:place])])
            hidden[place] = False
        totals.append(total)
    totals = torch.tensor(totals, dtype=torch.float64)
    assert_close(float(totals.mean()) / 5, exact_bound(model, ids), rtol=1e-5, atol=1e-6)
    information = -(torch.logsumexp(-totals, dim=0) - math.log(len(totals)))  # of writing in a random order
    assert float(information) / 5 < exact_bound(model, ids)


def test_the_weight_one_over_t_gives_the_same_bound():
    model, ids = build_masked(), random_ids(1, 4, vocab_size=28)
    times = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000  # the integral over t, numerically
    total = sum(
        float((times ** (sum(mask) - 1) * (1 - times) ** (4 - sum(mask))).mean() * loss.sum())
        for mask, loss in losses_of_every_mask(model, ids).items()
    )
    assert_close(total / 4, exact_bound(model, ids), rtol=1e-5, atol=1e-6)


def test_both_estimates_are_right_on_average():
    model, ids = build_masked(), random_ids(1, 6, vocab_size=28)
    exact, many = exact_bound(model, ids), ids.expand(2000, -1)
    with torch.no_grad():
        weighted = torch.stack([diffusion_loss(model, many, seeded(seed)) for seed in range(4)])
    counted = diffusion_bound(model, many, draws=6, generator=seeded())
    error = 4 * float(counted.std()) / 2000**0.5
    assert abs(float(counted.mean()) - exact) < error < 0.1 * exact
    assert abs(float(weighted.mean()) - exact) < 0.05 * exact


@pytest.mark.parametrize("order", ["confidence", "random"])
@pytest.mark.parametrize("steps", [1, 3, 8, 20])
def test_unmasking_reveals_every_hidden_position_once_and_touches_nothing_else(order, steps):
    model, ids = build_masked(), random_ids(3, 13, vocab_size=28)
    ids[:, 5:] = model.mask_id
    ids[1, 11], ids[2, 2] = 7, model.mask_id  # another number of gaps in each row
    seen, texts = torch.zeros(3, 13, dtype=torch.int64), []

    def on_step(step, text, revealed):
        assert bool((text[revealed] != model.mask_id).all())
        seen.add_(revealed)
        texts.append(text)

    written = unmask(model, ids, steps=steps, order=order, seed=5, on_step=on_step)
    assert torch.equal(seen, (ids == model.mask_id).long()) and len(texts) == steps
    assert torch.equal(written[ids != model.mask_id], ids[ids != model.mask_id])
    assert not bool((written == model.mask_id).any()) and torch.equal(written, texts[-1])
    assert torch.equal(written, unmask(model, ids, steps=steps, order=order, seed=5))


def test_the_surest_position_is_revealed_first():
    model, ids, first = build_masked(), torch.full((3, 13), 28), []
    unmask(model, ids, steps=13, temperature=0.0, on_step=lambda step, text, revealed: first.append(revealed))
    surest = model(ids).softmax(dim=-1).amax(dim=-1).argmax(dim=1)
    assert torch.equal(first[0].long().argmax(dim=1), surest) and first[0].sum() == 3


def test_wrong_requests_are_refused():
    model, ids = build_masked(), torch.full((3, 13), 28)
    with pytest.raises(ValueError, match="'left'"):
        unmask(model, ids, steps=2, order="left")
    with pytest.raises(ValueError, match="got 0"):
        unmask(model, ids, steps=0)
