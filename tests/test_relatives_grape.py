"""GRAPE's view: RoPE and ALiBi are exponentials of a matrix, checked with torch.linalg.matrix_exp in float64."""

import pytest
import torch
from torch.testing import assert_close

from transformer_lib.positions import rotate, rotation
from transformer_lib.relatives.grape import (
    alibi_generator,
    extend,
    group_element,
    relative_score,
    rope_generator,
    skew_symmetric,
)

NEAR = {"rtol": 1e-9, "atol": 1e-9}


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rope_is_the_exponential_of_its_generator(theta):
    x = vectors(3, 5, 7, 12)  # (B, H, T, d_k)
    positions = torch.tensor([0, 1, 2, 5, 17, 100, 1023])
    angles = positions[:, None].double() * theta ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    by_group = torch.stack(
        [x[:, :, i] @ group_element(rope_generator(12, theta), m).T for i, m in enumerate(positions)], 2
    )
    assert_close(rotate(x, angles.cos(), angles.sin()), by_group, **NEAR)
    cos, sin = rotation(positions, 12, theta)  # the library's angles are float32
    assert_close(rotate(x, cos, sin), by_group, rtol=0, atol=1e-3)


def test_generators_of_rotations_are_skew_symmetric_and_their_exponentials_orthogonal():
    for generator in (rope_generator(12), skew_symmetric(vectors(12, 12))):
        assert torch.equal(generator.T, -generator)
        element = group_element(generator, 3.7)
        assert_close(element @ element.T, torch.eye(12, dtype=torch.float64), **NEAR)
        assert_close(torch.linalg.det(element), torch.tensor(1.0, dtype=torch.float64), **NEAR)


@pytest.mark.parametrize(
    "generator",
    [rope_generator(12), skew_symmetric(vectors(12, 12)), alibi_generator(10, 0.25)],
    ids=["rope", "any", "alibi"],
)
def test_positions_add_up_and_scores_depend_on_the_distance_alone(generator):
    assert_close(group_element(generator, 2) @ group_element(generator, 5), group_element(generator, 7), **NEAR)
    q, k = vectors(2, 12)
    for m, n in ((9, 4), (4, 9), (25, 20)):
        # The query is moved by the inverse, transposed; for a rotation that is the same matrix.
        moved_q, moved_k = group_element(generator, -m).T @ q, group_element(generator, n) @ k
        assert_close(moved_q @ moved_k, relative_score(q, k, generator, n - m), **NEAR)


def test_the_nilpotent_generator_adds_a_penalty_linear_in_the_distance():
    q, k = vectors(2, 10)
    generator = alibi_generator(10, slope=0.25)
    assert not (generator @ generator).any()
    assert_close(group_element(generator, 6), torch.eye(12, dtype=torch.float64) + 6 * generator, **NEAR)
    for distance in (0, -1, -7):
        assert_close(
            relative_score(extend(q, 1, 0), extend(k, 0, 1), generator, distance), q @ k + 0.25 * distance, **NEAR
        )


def test_multiplicative_keeps_lengths_and_additive_does_not():
    x = torch.ones(12, dtype=torch.float64)
    assert_close((group_element(rope_generator(12), 40) @ x).norm(), x.norm(), **NEAR)
    assert (group_element(alibi_generator(10, 0.5), 40) @ x).norm() > 2 * x.norm()
