from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundle.second_moments import moments
from device_sdk.learning.step import precondition, scales

seeds = st.integers(0, 2**32 - 1)
dampings = st.floats(1e-3, 10.0)


def squares(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {"w": generator.exponential(1e-5, (4, 3)), "v": generator.exponential(1e-2, (2, 5)), "b": np.ones(3) * 1e-3}


def test_by_hand() -> None:
    # w: mean 4, rows 1 and 7, columns 3 and 5; without damping w's factors are 2 / sqrt(rows * columns).
    factors = scales(moments({"w": np.array([[1.0, 1.0], [5.0, 9.0]])}), 1e-9)
    expected = 2.0 / np.sqrt(np.outer([1.0, 7.0], [3.0, 5.0]))
    found = precondition({"w": np.ones((2, 2), np.float32)}, factors)["w"]
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-5)


@given(seeds, dampings)
def test_factors_have_mean_one_and_are_positive(seed: int, damping: float) -> None:
    found = squares(seed)
    ones = {name: np.ones(value.shape, np.float32) for name, value in found.items()}
    scaled = precondition(ones, scales(moments(found), damping))
    values = np.concatenate([value.ravel() for value in scaled.values()])
    assert (values > 0).all()
    assert values.mean() == pytest.approx(1.0, rel=1e-4)


@given(seeds)
def test_gradients_of_separable_size_become_alike(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, columns = generator.uniform(0.5, 2.0, 6), generator.uniform(0.5, 2.0, 4)
    sizes = {"w": np.outer(rows, columns), "b": generator.uniform(5.0, 20.0, 5)}
    gradients = {name: np.sqrt(value).astype(np.float32) for name, value in sizes.items()}
    scaled = precondition(gradients, scales(moments(sizes), 1e-6))
    values = np.concatenate([value.ravel() for value in scaled.values()])
    np.testing.assert_allclose(values, values[0], rtol=1e-3)


@given(seeds, st.floats(1e-6, 1e6))
def test_the_unit_of_the_loss_does_not_matter(seed: int, unit: float) -> None:
    found = squares(seed)
    one, other = (scales(moments({n: u * v for n, v in found.items()}), 0.1) for u in (1.0, unit))
    for name in found:
        for a, b in zip(one[name], other[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3)


def test_large_damping_leaves_directions_within_a_tensor() -> None:
    found = squares(0)
    gradient = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    scaled = precondition({"w": gradient}, scales(moments(found), 1e6))["w"]
    np.testing.assert_allclose(scaled / gradient, (scaled / gradient).mean(), rtol=1e-4)


def test_what_was_given_is_left_as_it_was() -> None:
    gradient = np.ones((4, 3), np.float32)
    precondition({"w": gradient}, scales(moments(squares(0)), 0.1))
    assert (gradient == 1.0).all()
