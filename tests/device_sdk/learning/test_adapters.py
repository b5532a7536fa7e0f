"""Adapters: the sum never changes when factors are found in it, and what steps change is of their rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import LearningError
from device_sdk.learning.step import factor_scales, factorize, merge

Arrays = dict[str, np.ndarray]


def matrices(seed: int, scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


SHAPES = {"wide": (6, 20), "tall": (30, 5), "thin": (2, 9)}


@given(st.integers(0, 999), st.integers(1, 8), st.integers(0, 8))
def test_a_change_of_low_rank_is_found_again(seed: int, rank: int, changed: int) -> None:
    rng, start = np.random.default_rng(seed), matrices(seed)
    weights = {}
    for name, value in start.items():
        out, width = value.shape
        change = rng.normal(size=(out, min(changed, rank))) @ rng.normal(size=(min(changed, rank), width))
        weights[name] = value + change.astype(np.float32)
    factors = factorize(weights, start, SHAPES, rank, np.random.default_rng(1))
    for name, (out, width) in SHAPES.items():
        up, down = factors[f"{name}.up"], factors[f"{name}.down"]
        assert up.shape == (out, min(rank, out, width)) and down.shape == (min(rank, out, width), width)
        np.testing.assert_allclose(up @ down, weights[name] - start[name], atol=2e-5)
        np.testing.assert_allclose(down @ down.T, np.eye(len(down)), atol=1e-5)


def test_without_a_change_up_is_zero_and_down_is_random() -> None:
    start = matrices(3)
    first, second = (factorize(start, start, SHAPES, 2, np.random.default_rng(seed)) for seed in (0, 1))
    for name in SHAPES:
        assert not first[f"{name}.up"].any()
        assert np.abs(first[f"{name}.down"] - second[f"{name}.down"]).max() > 0.01


@given(st.integers(0, 999))
def test_steps_on_factors_change_the_sum_by_their_rank(seed: int) -> None:
    rng, start, rank = np.random.default_rng(seed), matrices(seed), 2
    weights, factors = dict(start), factorize(start, start, SHAPES, rank, rng)
    for turn in range(4):
        after = {name: value + rng.normal(0, 0.3, value.shape).astype(np.float32) for name, value in factors.items()}
        weights, factors = merge(weights, factors, after, SHAPES), after
        if turn == 1:  # as after a restart
            factors = factorize(weights, start, SHAPES, rank, rng)
    for name in SHAPES:
        np.testing.assert_allclose(
            factors[f"{name}.up"] @ factors[f"{name}.down"], weights[name] - start[name], atol=1e-4
        )
        singular = np.linalg.svd((weights[name] - start[name]).astype(np.float64), compute_uv=False)
        assert (singular[rank:] < 1e-5 * singular[0]).all()


def test_a_change_of_full_rank_stays_in_the_sum() -> None:
    """As after steps on every parameter: what two factors cannot hold is part of the matrix beneath them."""
    start, weights = matrices(0), matrices(1)
    factors = factorize(weights, start, SHAPES, 2, np.random.default_rng(0))
    same = merge(weights, factors, factors, SHAPES)
    for name in SHAPES:
        np.testing.assert_array_equal(same[name], weights[name])


def test_a_sum_that_is_not_finite_is_refused() -> None:
    start = matrices(0)
    factors = factorize(start, start, SHAPES, 2, np.random.default_rng(0))
    after = {name: np.full_like(value, 1e30) for name, value in factors.items()}
    with np.errstate(all="ignore"), pytest.raises(LearningError, match="adapters wide: the step leaves"):
        merge(start, factors, after, SHAPES)


def test_factors_are_scaled_like_their_matrix() -> None:
    rows, columns = np.array([1.0, 2.0, 6.0], np.float32), np.array([4.0, 8.0], np.float32)
    found = factor_scales({"m": (rows, columns), "bias": (rows,)}, ["m"])
    np.testing.assert_allclose(found["m.up"][0], [6.0, 12.0, 36.0])
    np.testing.assert_allclose(found["m.down"][1], [12.0, 24.0])
    assert found["m.up"][1].tolist() == found["m.down"][0].tolist() == [1.0]
    assert set(found) == {"m.up", "m.down"}
