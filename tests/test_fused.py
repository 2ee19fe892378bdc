"""Gradients worked out by hand: wrong by a factor, wrong where shapes are broadcast, other than the formula's."""

import pytest
import torch
from small import build, random_ids, small

from transformer_lib import fused
from transformer_lib.attention import MultiHeadAttention
from transformer_lib.losses import cross_entropy, token_losses
from transformer_lib.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from transformer_lib.positions import rotate, rotation

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def randn(*shape, seed=0, dtype=torch.float32, grad=True):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return x.requires_grad_(grad)


def same(fast, formula, *inputs):
    """Equal values, and equal gradients of a loss that weights every output differently."""
    results = []
    for function in (fast, formula):
        out = function(*inputs)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=out.dtype)
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (3, 5, 7)])
@pytest.mark.parametrize(("size", "eps"), [(1.0, 1e-5), (1e-3, 1e-5), (100.0, 0.5), (0.0, 1e-5)])
def test_rms_norm_is_the_formula(shape, size, eps):
    x, weight = (size * randn(*shape, grad=False)).requires_grad_(), randn(7, seed=1)
    same(lambda x, w: fused.RMSNorm.apply(x, w, eps), lambda x, w: rms_norm(x, w, eps), x, weight)


def test_gradients_are_those_of_differences():
    x, weight = randn(2, 3, 6, dtype=torch.float64), randn(6, seed=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, w: fused.RMSNorm.apply(x, w, 0.1), (x, weight))
    cos, sin = (t.double() for t in rotation(torch.arange(3), 6))
    assert torch.autograd.gradcheck(lambda x: fused.Rotation.apply(x, cos, sin), (x,))
    targets = torch.tensor([[0, 5, 2], [3, 3, 1]])
    assert torch.autograd.gradcheck(lambda x: fused.Surprise.apply(x, targets), (x,))


@pytest.mark.parametrize("positions", [torch.arange(5), torch.tensor([[3, 4, 5, 6, 7], [0, 0, 0, 1, 2]])[:, None]])
def test_rotation_is_the_formula(positions):
    cos, sin = rotation(positions, 8)
    x = randn(2, 5, 3, 8).transpose(1, 2)  # heads as attention has them, not contiguous
    same(lambda x: fused.Rotation.apply(x, cos, sin), lambda x: rotate(x, cos, sin), x)


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_the_loss_is_the_formula(size):
    logits, targets = (size * randn(3, 5, 11, grad=False)).requires_grad_(), torch.arange(15).view(3, 5) % 11

    def formula(logits):  # in float64 it is the formula that runs
        return token_losses(logits.double(), targets).float()

    same(lambda logits: token_losses(logits, targets), formula, logits)
    assert type(token_losses(logits, targets).grad_fn).__name__ == "SurpriseBackward"


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (LayerNorm(7, 0.01), lambda m, x: layer_norm(x, m.weight, m.bias, m.eps)),
        (RMSNorm(7, 0.01), lambda m, x: rms_norm(x, m.weight, m.eps)),
    ],
)
def test_the_layers_run_their_formula(layer, formula):
    with torch.no_grad():
        for i, weight in enumerate(layer.parameters()):
            weight.copy_(randn(7, seed=i))
    x = randn(3, 5, 7, seed=4)
    same(layer, lambda x: formula(layer, x), x)
    half = x.bfloat16()  # other precisions: the formula itself
    out = layer.bfloat16()(half)
    assert out.dtype == torch.bfloat16 and torch.equal(out, formula(layer, half)), (
        "other precisions: the formula itself"
    )


def test_a_model_learns_the_same_from_formulas_alone(monkeypatch):
    """All gradients of a whole model, fused against plain."""

    def gradients():
        model, ids = build(small()), random_ids(3, 11)
        cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()
        return {name: weight.grad for name, weight in model.named_parameters()}

    fast = gradients()
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: rms_norm(x, self.weight, self.eps))
    monkeypatch.setattr(MultiHeadAttention, "rotate", lambda self, x, cos, sin: rotate(x, cos, sin))
    for name, gradient in gradients().items():
        torch.testing.assert_close(fast[name], gradient, **CLOSE)
