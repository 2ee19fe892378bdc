"""Mixture of experts: equal to the dense sum, balanced where it is, and counted right."""

import pytest
import torch
from small import random_ids
from small_relatives import MOE, build, build_causal
from torch.testing import assert_close

from transformer_lib import record
from transformer_lib.relatives.counting import count
from transformer_lib.relatives.moe import MixtureOfExperts, MoETransformer, balance_loss, dense_mixture, expert_load


@pytest.mark.parametrize("n_active", [1, 2, 3, 5])
@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_equal_to_the_dense_loop_over_all_experts(n_active, activation):
    torch.manual_seed(0)
    layer = MixtureOfExperts(MOE.replace(n_active=n_active, activation=activation))
    x = torch.randn(3, 13, 24)
    assert_close(layer(x), dense_mixture(layer, x), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_dense_loop():
    torch.manual_seed(0)
    layer, x = MixtureOfExperts(MOE), torch.randn(3, 13, 24)
    gradients = []
    for run in (layer, lambda x: dense_mixture(layer, x)):
        layer.zero_grad()
        run(x).pow(2).sum().backward()
        gradients.append([weight.grad.clone() for weight in layer.parameters()])
    for sparse, dense in zip(*gradients, strict=True):
        assert_close(sparse, dense, rtol=1e-3, atol=1e-5)


def test_one_expert_is_the_plain_mlp():
    torch.manual_seed(0)
    layer, x = MixtureOfExperts(MOE.replace(n_experts=1, n_active=1)), torch.randn(3, 13, 24)
    assert_close(layer(x), layer.experts[0](x), rtol=1e-5, atol=1e-6)


def test_with_one_active_expert_the_router_still_learns():
    model = build(MoETransformer, MOE.replace(n_active=1))
    model(random_ids(3, 13)).logsumexp(-1).mean().backward()
    assert model.blocks[0].mlp.router.weight.grad.abs().max() > 0


def test_balance_loss_is_one_when_even_and_n_experts_when_all_go_to_one():
    even = torch.full((2, 10, 5), 0.2)
    each_once = torch.arange(20).view(2, 10, 1) % 5
    assert_close(balance_loss(even, each_once), torch.tensor(1.0))
    one = torch.zeros(2, 10, 5)
    one[..., 3] = 1
    assert_close(balance_loss(one, torch.full((2, 10, 1), 3)), torch.tensor(5.0))


def test_balance_loss_pushes_the_router_away_from_the_busy_expert():
    scores = torch.zeros(4, 7, 5)
    scores[..., 2] = 1.0
    scores.requires_grad_()
    probabilities = scores.softmax(dim=-1)
    balance_loss(probabilities, probabilities.topk(1, dim=-1).indices).backward()
    assert bool((scores.grad[..., 2] > 0).all()) and bool((scores.grad[..., :2] < 0).all())


def test_expert_load_counts_every_choice_once():
    chosen = torch.tensor([[[0, 3], [3, 1], [3, 0]]])
    assert_close(expert_load(chosen, 5), torch.tensor([2, 1, 0, 3, 0]) / 6)


def test_the_models_balance_loss_is_the_mean_over_its_blocks_and_read_once():
    model, ids = build_causal("moe"), random_ids(3, 13)
    with record(model) as seen:
        model(ids)
    expected = [balance_loss(seen[f"blocks.{i}.mlp.router"], seen[f"blocks.{i}.mlp.chosen"]) for i in (0, 1)]
    assert_close(model.balance_loss(), torch.stack(expected).mean())
    with pytest.raises(RuntimeError, match="call model"):
        model.balance_loss()


def test_active_parameters_are_those_that_a_token_meets():
    counts = count(build_causal("moe"))
    expert = 3 * 24 * 40
    attention = 24 * 48 * 2 + 2 * 24 * 16
    rest = 2 * 29 * 24 + 2 * (attention + 2 * 24 + 5 * 24) + 24
    assert counts.parameters == rest + 2 * 5 * expert
    assert counts.active_parameters == rest + 2 * 2 * expert


@pytest.mark.parametrize("wrong", [{"n_experts": 0}, {"n_active": 6}, {"n_active": 1.5}])
def test_a_shape_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        MOE.replace(**wrong)
