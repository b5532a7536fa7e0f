"""A step: clipped SGD, masks, the preconditioner, and adapters, in whose factors a sum is found without a change."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from device_sdk.bundle.second_moments import moments
from device_sdk.errors import LearningError
from device_sdk.learning.settings import MaskSettings, StepSettings
from device_sdk.learning.step import Course, factor_scales, factorize, mask, merge, precondition, scales, sgd
from tests.device_sdk.learning.test_delta import arrays

Arrays = dict[str, np.ndarray]
seeds = st.integers(0, 2**32 - 1)


def test_a_step_by_hand() -> None:
    weights = arrays([1.0, 2.0], [3.0]) | {"features.mean": np.ones(2, np.float32)}
    settings = StepSettings(learning_rate=0.1, clip_norm=2.5)
    stepped, course, norm = sgd(weights, arrays([3.0, 0.0], [4.0]), 2.0, Course(), settings)
    assert norm == 5.0
    np.testing.assert_allclose([*stepped["p0"], *stepped["p1"]], [0.85, 2.0, 2.8], rtol=1e-6)
    assert stepped["features.mean"] is weights["features.mean"] and weights["p0"].tolist() == [1.0, 2.0]
    assert (course.steps, course.loss) == (1, 2.0)


@pytest.mark.parametrize(
    ("gradient", "loss", "course", "settings", "words"),
    [
        ([1.0], math.nan, Course(), StepSettings(), "loss: found nan"),
        ([1.0], math.inf, Course(), StepSettings(), "loss: found inf"),
        ([math.nan], 1.0, Course(), StepSettings(), "gradient p0"),
        ([3e38, 3e38], 1.0, Course(), StepSettings(), "norm|not finite"),
        ([2e4], 1.0, Course(), StepSettings(), "gradient norm: found 2e.04"),
        ([1.0], 1000.0, Course(loss=20.0), StepSettings(), "running mean 20"),
        ([1e3], 1.0, Course(), StepSettings(learning_rate=1e38, clip_norm=1e3), "p0: the step leaves"),
    ],
)
def test_divergence_is_refused_and_the_weights_stay(gradient, loss, course, settings, words) -> None:
    weights = arrays([1.0] * len(gradient))
    with np.errstate(all="ignore"), pytest.raises(LearningError, match=words):
        sgd(weights, arrays(gradient), loss, course, settings)
    assert weights["p0"].tolist() == [1.0] * len(gradient)
    easy = Course(loss=0.5)
    assert sgd(weights, weights, 40.0, easy, StepSettings())[0]["p0"][0] < 1.0, "a hard one after easy ones is none"


@given(st.integers(1, 80), st.integers(0, 1000))
def test_masks_put_the_mean_and_stay_within_their_share(frames: int, seed: int) -> None:
    generator, mean = np.random.default_rng(seed), np.full(16, 99.0, np.float32)
    features = generator.normal(size=(frames, 16)).astype(np.float32)
    settings = MaskSettings(frequency_masks=1, frequency_width=5, time_masks=3, time_width=10, time_share=0.3)
    result = mask(features, mean, settings, np.random.default_rng(seed))
    changed = result != features
    assert np.all(result[changed] == 99.0) and not np.any(features == 99.0)
    assert changed.all(axis=0).sum() <= 5 or frames < 4
    assert changed.all(axis=1).sum() <= int(0.3 * frames)
    np.testing.assert_array_equal(mask(features, mean, MaskSettings(0, 0, 0, 0), generator), features)


# The preconditioner


def squares(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {"w": generator.exponential(1e-5, (4, 3)), "v": generator.exponential(1e-2, (2, 5)), "b": np.ones(3) * 1e-3}


def test_scales_by_hand() -> None:
    # w: mean 4, rows 1 and 7, columns 3 and 5; without damping w's factors are 2 / sqrt(rows * columns).
    factors, given = scales(moments({"w": np.array([[1.0, 1.0], [5.0, 9.0]])}), 1e-9), np.ones((2, 2), np.float32)
    expected = 2.0 / np.sqrt(np.outer([1.0, 7.0], [3.0, 5.0]))
    np.testing.assert_allclose(precondition({"w": given}, factors)["w"], expected / expected.mean(), rtol=1e-5)
    assert (given == 1.0).all()


@given(seeds, st.floats(1e-3, 10.0))
def test_factors_have_mean_one_and_are_positive(seed: int, damping: float) -> None:
    ones = {name: np.ones(value.shape, np.float32) for name, value in squares(seed).items()}
    scaled = precondition(ones, scales(moments(squares(seed)), damping))
    values = np.concatenate([value.ravel() for value in scaled.values()])
    assert (values > 0).all() and values.mean() == pytest.approx(1.0, rel=1e-4)


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
    one, other = (scales(moments({n: u * v for n, v in squares(seed).items()}), 0.1) for u in (1.0, unit))
    for name, factors in one.items():
        for a, b in zip(factors, other[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3)


def test_large_damping_leaves_directions_within_a_tensor() -> None:
    scaled = precondition({"w": np.ones((4, 3), np.float32)}, scales(moments(squares(0)), 1e6))["w"]
    np.testing.assert_allclose(scaled, scaled.mean(), rtol=1e-4)


# Adapters

SHAPES = {"wide": (6, 20), "tall": (30, 5), "thin": (2, 9)}


def matrices(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@given(st.integers(0, 999), st.integers(1, 8), st.integers(0, 8))
@example(3, 2, 0)
def test_a_change_of_low_rank_is_found_again(seed: int, rank: int, changed: int) -> None:
    rng, start, weights = np.random.default_rng(seed), matrices(seed), {}
    for name, (out, width) in SHAPES.items():
        change = rng.normal(size=(out, min(changed, rank))) @ rng.normal(size=(min(changed, rank), width))
        weights[name] = start[name] + change.astype(np.float32)
    factors, other = (factorize(weights, start, SHAPES, rank, np.random.default_rng(seed)) for seed in (1, 2))
    for name, (out, width) in SHAPES.items():
        up, down = factors[f"{name}.up"], factors[f"{name}.down"]
        assert changed or (not up.any() and np.abs(down - other[f"{name}.down"]).max() > 0.01), "random where unused"
        assert up.shape == (out, min(rank, out, width)) and down.shape == (min(rank, out, width), width)
        np.testing.assert_allclose(up @ down, weights[name] - start[name], atol=2e-5)
        np.testing.assert_allclose(down @ down.T, np.eye(len(down)), atol=1e-5)


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
        change = weights[name] - start[name]
        np.testing.assert_allclose(factors[f"{name}.up"] @ factors[f"{name}.down"], change, atol=1e-4)
        singular = np.linalg.svd(change.astype(np.float64), compute_uv=False)
        assert (singular[rank:] < 1e-5 * singular[0]).all()


def test_a_change_of_full_rank_stays_in_the_sum_and_one_that_is_not_finite_is_refused() -> None:
    """As after steps on every parameter: what two factors cannot hold is part of the matrix beneath them."""
    weights = matrices(1)
    factors = factorize(weights, matrices(0), SHAPES, 2, np.random.default_rng(0))
    for name, same in merge(weights, factors, factors, SHAPES).items():
        np.testing.assert_array_equal(same, weights[name])
    after = {name: np.full_like(value, 1e30) for name, value in factors.items()}
    with np.errstate(all="ignore"), pytest.raises(LearningError, match="adapters wide: the step leaves"):
        merge(weights, factors, after, SHAPES)


def test_factors_are_scaled_like_their_matrix() -> None:
    rows, columns = np.array([1.0, 2.0, 6.0], np.float32), np.array([4.0, 8.0], np.float32)
    found = factor_scales({"m": (rows, columns), "bias": (rows,)}, ["m"])
    assert {name: [factor.tolist() for factor in factors] for name, factors in found.items()} == {
        "m.up": [[6.0, 12.0, 36.0], [1.0]],
        "m.down": [[1.0], [12.0, 24.0]],
    }
