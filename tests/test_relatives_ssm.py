"""The state-space model: one recurrence, three ways, and a state that does not grow."""

import pytest
import torch
from small import random_ids
from small_relatives import SSM, build, build_causal
from torch.testing import assert_close

from transformer_lib import record
from transformer_lib.relatives.counting import bytes_per_token, count
from transformer_lib.relatives.scan import causal_convolution, convolution_kernel, parallel_scan, recurrence
from transformer_lib.relatives.ssm import SelectiveSSM, SSMTransformer


@pytest.mark.parametrize("length", [1, 2, 7, 16, 37])
def test_the_parallel_scan_gives_the_recurrences_states_and_gradients(length):
    torch.manual_seed(0)
    shapes = [(3, length, 5, 2), (3, length, 5, 2), (3, 5, 2)]
    decay, write, state = (torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    weights = torch.randn(3, length, 5, 2, dtype=torch.float64)
    results = []
    for scan in (recurrence, parallel_scan):
        states = scan(decay, write, state)
        results.append((states, *torch.autograd.grad((states * weights).sum(), (decay, write, state))))
    for one, other in zip(*results, strict=True):
        assert_close(other, one, rtol=1e-10, atol=1e-12)


def test_a_recurrence_that_is_the_same_at_every_step_is_a_convolution():
    torch.manual_seed(0)
    decay, write, read = torch.rand(5, 2), torch.randn(5, 2), torch.randn(5, 2)
    x = torch.randn(3, 17, 5)
    states = recurrence(decay.expand(3, 17, 5, 2), write * x[..., None], torch.zeros(3, 5, 2))
    convolved = causal_convolution(x, convolution_kernel(decay, write, read, 17))
    assert_close(convolved, (states * read).sum(dim=-1), rtol=1e-4, atol=1e-5)


def test_the_layer_without_selection_is_that_convolution():
    model, ids = build(SSMTransformer, SSM.replace(selective=False)), random_ids(3, 13)
    layer, inputs = model.blocks[0].attention, []
    original = layer.parameters_at
    layer.parameters_at = lambda inner: inputs.append(inner) or original(inner)
    with record(model) as seen:
        model(ids)
    step = torch.nn.functional.softplus(layer.step_bias)[:, None]  # (E, 1)
    kernel = convolution_kernel(torch.exp(-step * layer.log_a.exp()), step * layer.b, layer.c, 13)
    recurrent = (seen["blocks.0.attention.states"] * layer.c).sum(dim=-1)
    assert_close(causal_convolution(inputs[0], kernel), recurrent, rtol=1e-4, atol=1e-5)


def test_selection_makes_the_step_depend_on_the_token_and_without_it_does_not():
    for selective, spread in ((True, 1e-3), (False, 0.0)):
        model = build(SSMTransformer, SSM.replace(selective=selective))
        with record(model) as seen:
            model(random_ids(3, 13))
        step = seen["blocks.1.attention.step"]
        assert (step.std(dim=1).max() > spread) if selective else torch.equal(step, step[:1, :1].expand_as(step))


def test_the_short_convolution_sees_its_width_and_no_future():
    x, kernel = torch.zeros(2, 9, 3), torch.tensor([[1.0, 2, 3, 4]] * 3)
    x[:, 4] = 1.0
    assert causal_convolution(x, kernel)[0, :, 0].tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 0]


def test_the_state_is_as_large_after_one_token_as_after_all():
    model = build_causal("ssm")
    sizes = {model.new_cache(3, length).nbytes for length in (1, 5, 19)}
    assert sizes == {2 * 3 * 14 * (3 + 4 - 1) * 4}
    assert bytes_per_token(model, batch_size=3) == (0, sizes.pop() // 3)


def test_the_cache_counts_everything_that_the_layers_keep():
    cache = build_causal("ssm").new_cache(3, 7)
    held = sum(value.nbytes for value in vars(cache).values() if isinstance(value, torch.Tensor))
    assert held == cache.nbytes + cache.keep.nbytes


def test_initial_steps_and_decays_are_mambas():
    torch.manual_seed(0)
    layer = SSMTransformer(SSM).blocks[1].attention
    step = torch.nn.functional.softplus(layer.step_bias)
    assert step.min() >= 0.001 * 0.99 and step.max() <= 0.1 * 1.01
    assert_close(layer.log_a.exp(), torch.tensor([1.0, 2, 3]).expand(14, 3))


def test_parameters_by_hand():
    width, rank = 14, 2
    layer = 24 * 28 + width * (4 + 1) + width * 3 + width + width * (rank + 6) + rank * width + width + width * 24
    assert sum(weight.numel() for weight in SelectiveSSM(SSM).parameters()) == layer
    block = layer + 3 * 24 * 40 + 2 * 24
    assert count(build_causal("ssm")).parameters == 2 * block + 2 * 29 * 24 + 24


@pytest.mark.parametrize("wrong", [{"d_state": 0}, {"d_inner": -3}, {"positions": "rope"}])
def test_a_shape_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError):
        SSM.replace(**wrong)


@pytest.mark.parametrize("way", [recurrence, parallel_scan])
def test_the_whole_model_is_one_with_either_way_of_scanning(way, monkeypatch):
    model, ids = build_causal("ssm"), random_ids(3, 13)
    expected = model(ids)
    monkeypatch.setattr("transformer_lib.relatives.ssm.scan", way)
    assert_close(model(ids), expected, rtol=1e-4, atol=1e-5)
