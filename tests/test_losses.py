"""The loss: masked before the mean, smoothed as torch does it, finite whatever the logits are."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from transformer_lib.losses import cross_entropy, masked_mean, token_losses


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.37])
def test_equal_to_torchs_cross_entropy_and_its_gradient(smoothing):
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(4, 7, 11)).requires_grad_(), torch.randint(11, (4, 7))
    ours = cross_entropy(logits, targets, label_smoothing=smoothing)
    torchs = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
    assert_close(ours, torchs, rtol=1e-6, atol=1e-6)
    ours_grad, torchs_grad = (torch.autograd.grad(loss, logits)[0] for loss in (ours, torchs))
    assert_close(ours_grad, torchs_grad, rtol=1e-5, atol=1e-7)


def test_the_mask_is_applied_before_the_mean():
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 7, 11), torch.randint(11, (4, 7))
    keep = torch.rand(4, 7) > 0.4
    expected = F.cross_entropy(logits[keep], targets[keep], label_smoothing=0.1)
    assert_close(cross_entropy(logits, targets, keep, label_smoothing=0.1), expected, rtol=1e-6, atol=1e-6)


def test_a_token_that_does_not_count_may_have_an_infinite_loss():
    logits, targets = torch.randn(2, 3, 11), torch.randint(11, (2, 3))
    keep = torch.tensor([[True, True, False], [True, False, False]])
    expected = cross_entropy(logits, targets, keep)
    wild = logits.clone()
    wild[0, 2, targets[0, 2]] = -float("inf")
    assert token_losses(wild, targets)[0, 2] == float("inf")
    assert_close(cross_entropy(wild, targets, keep), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_finite_where_a_probability_is_too_small_for_a_float(smoothing):
    logits = torch.zeros(1, 2, 11)
    logits[..., 0] = 5_000.0
    loss = token_losses(logits, torch.tensor([[0, 3]]), smoothing)
    assert bool(loss.isfinite().all()) and loss[0, 1] > 4_000


def test_nothing_to_count_is_zero_and_still_differentiable():
    logits = torch.randn(2, 3, 11, requires_grad=True)
    loss = cross_entropy(logits, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()


def test_a_smoothed_loss_is_least_at_the_smoothed_probabilities():
    best = torch.full((1, 11), 0.1 / 11)
    best[0, 4] += 0.9
    at_best = token_losses(best.log(), torch.tensor([4]), 0.1)
    sure = token_losses(torch.eye(11)[4:5] * 50, torch.tensor([4]), 0.1)
    assert at_best < sure


def test_wrong_arguments_are_refused_in_a_sentence():
    logits, targets = torch.randn(2, 3, 11), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"1\.5"):
        token_losses(logits, targets, 1.5)
    with pytest.raises(ValueError, match=r"\(2, 3, 11\)"):
        token_losses(logits, targets.T)
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        masked_mean(torch.zeros(2, 3), torch.ones(3, 2, dtype=torch.bool))
