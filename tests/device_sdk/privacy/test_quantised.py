"""Deltas as integers: their sum is the deltas' sum to the rounding stated, and no longer than is charged."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import PrivacyError
from device_sdk.privacy import quantised as q
from device_sdk.privacy.spending import cost_of, epsilon_of
from device_sdk.wire.messages import DeltaPlan

SHAPES = {"b": (5,), "a": (8, 6)}


def plan_of(**changes) -> DeltaPlan:
    return DeltaPlan.model_validate({"trust": "distributed", "minimum_survivors": 2} | changes)


@given(
    st.integers(10, 20), st.floats(1e-3, 1e3), st.sampled_from(["global", "uniform", "dim"]), st.integers(0, 2**32 - 1)
)
@settings(max_examples=40, deadline=None)
def test_a_sum_is_that_of_the_clipped_deltas_to_within_rounding(bits, clip_norm, clipping, seed) -> None:
    """Every value of a device's vector is rounded by less than a step, so a sum's whole is off by less than that times
    the root of its values, in any rotation."""
    rng = np.random.default_rng(seed)
    plan, devices = plan_of(bits=bits, clip_norm=clip_norm, clipping=clipping), 4
    deltas = [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(devices)
    ]
    vectors = [q.quantised(delta, plan, "round") for delta in deltas]
    expected = sum(q.flat(q.clip(delta, clip_norm, clipping)[0]) for delta in deltas)
    found = q.summed(np.sum(vectors, axis=0), plan, "round")
    step = clip_norm / q.clip_steps(plan)
    assert np.linalg.norm(found - expected) <= devices * step * math.sqrt(expected.size) + 1e-6 * clip_norm * devices
    parted = q.parted(found, SHAPES)
    assert {name: array.shape for name, array in parted.items()} == SHAPES
    np.testing.assert_array_equal(q.flat(parted), found.astype(np.float32))


@pytest.mark.parametrize("bits", [10, 14])
@pytest.mark.parametrize("values", [3, 1024, 5000])
def test_no_vector_is_longer_than_what_is_charged(bits: int, values: int) -> None:
    plan = plan_of(bits=bits)
    vectors = np.random.default_rng(0).normal(size=(50, values))
    vectors[0] = 0.5  # what rounding adds most to, in its place below
    vectors *= 1.0000001 / np.linalg.norm(vectors, axis=1, keepdims=True)
    squares = np.square(q.rounded(vectors, plan, "round")).sum(axis=1)
    assert squares.max() <= q.squared_sensitivity(plan)
    assert squares.min() >= 0.9 * q.clip_steps(plan) ** 2, "nothing was merely cut off"


def test_rounding_that_never_fits_is_cut_off_instead(monkeypatch) -> None:
    """Where every draw is too long what is left is shorter than before it was rounded."""
    plan = plan_of(bits=10)
    monkeypatch.setattr(q, "squared_sensitivity", lambda _: 3)
    vector = np.full((1, 64), 1 / 8)
    rotated = q.rotate(vector, "round") * q.clip_steps(plan)
    np.testing.assert_array_equal(q.rounded(vector, plan, "round"), np.trunc(rotated * (1 - 1e-15)))


def test_rounding_is_right_on_the_average() -> None:
    plan = plan_of(bits=10)
    vector = np.random.default_rng(1).normal(size=64)
    vector /= 2 * np.linalg.norm(vector)
    mean = q.rounded(np.repeat(vector[None], 20_000, axis=0), plan, "round").mean(axis=0)
    exact = q.rotate(vector, "round") * q.clip_steps(plan)
    assert np.abs(mean - exact).max() < 6 * 0.5 / math.sqrt(20_000)


def test_noise_has_the_variance_of_a_share_and_the_sum_that_of_the_plan() -> None:
    plan = plan_of(noise_stddev=0.01, minimum_survivors=20)
    steps = 0.01 * q.clip_steps(plan)
    assert steps**2 <= q.step_variance(plan) < steps**2 + 1
    draws = q.noised(np.zeros((20, 20_000), np.int64), plan)
    for found, expected in ((draws.ravel(), steps**2), (draws.sum(axis=0), 20 * steps**2)):
        assert abs(found.mean()) < 6 * math.sqrt(expected / found.size)
        assert abs(found.var() / expected - 1) < 6 * math.sqrt(2 / found.size)


@pytest.mark.parametrize(
    ("bits", "changes", "devices", "values", "expected"),
    [
        (14, {"noise_stddev": 0.75}, 50, 65_536, 20),
        (14, {}, 50, 65_536, 15),  # no noise: what the rotation leaves of fifty that are all alike
        (14, {}, 50, 1, 20),  # nothing to rotate: fifty times the bound
        (14, {"noise_stddev": 0.75}, 256, 1 << 20, 21),
        (10, {"noise_stddev": 0.75}, 2, 1024, 14),
    ],
)
def test_words_are_as_wide_as_a_sum_needs(bits, changes, devices, values, expected) -> None:
    plan = plan_of(bits=bits, **changes)
    found = q.word_bits(plan, devices, values)
    assert found == expected
    # Deltas as long as they may be, and all alike: they and ten deviations of the noise stay inside.
    delta = {"w": np.random.default_rng(0).normal(size=min(values, 65_536)).astype(np.float32)}
    vector = q.quantised(delta, plan_of(bits=bits), "round")
    farthest = devices * np.abs(vector).max() + 8 * math.sqrt(devices * q.step_variance(plan))
    assert farthest < 2 ** (found - 1)


@pytest.mark.parametrize("stddev", [0.0, 0.5])
def test_no_honest_sum_is_longer_than_it_may_be(stddev: float) -> None:
    """Nor is the bound far off: one device that adds as much again as all the others passes it where there is no noise,
    and what is beyond the noise's own length where there is."""
    plan, devices, values = plan_of(noise_stddev=stddev), 20, 1024
    delta = {"w": np.random.default_rng(0).normal(size=values).astype(np.float32)}
    most = q.largest_sum(plan, devices, values)
    alike = sum(q.quantised(delta, plan, "round") for _ in range(devices))
    assert 0.9 * most < np.linalg.norm(alike) <= most if not stddev else np.linalg.norm(alike) <= most
    liar = (devices + (most / q.clip_steps(plan) if stddev else 0)) * q.quantised(delta, plan_of(), "round")
    assert np.linalg.norm(alike + liar) > most


def test_what_is_charged_is_theorem_1() -> None:
    """Written out once more, for a plan whose tau is nothing, and for one where it is not."""
    plan = plan_of(noise_stddev=1.0, minimum_survivors=34)
    steps = q.clip_steps(plan)
    longest = steps**2 + 2**18 + math.sqrt(2 * 0.5) * (steps + 2**10 / 2)
    assert q.squared_sensitivity(plan) == math.floor(longest)
    assert q.squared_ratio(plan) == pytest.approx(longest / (34 * steps**2), rel=1e-6)
    assert q.squared_ratio(plan) > 1 / 34, "rounding costs something"
    assert epsilon_of(cost_of(plan, cohort=1000), 1e-6) == epsilon_of(cost_of(plan), 1e-6), "whatever the app trusts"
    assert math.isinf(q.squared_ratio(plan_of())) and math.isinf(epsilon_of(cost_of(plan_of()), 1e-6))
    coarse = plan_of(bits=10)
    assert q.squared_sensitivity(coarse) == math.floor(511**2 + 2**18 + 511 + 512)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: q.step_variance(plan_of(noise_stddev=1e-3)), "noise_stddev: found 0.001, a share of variance 68"),
        (
            lambda: q.step_variance(plan_of(noise_stddev=1e7)),
            "noise_stddev: found 1e[+]07, expected 1e[+]06 clip norms",
        ),
        (
            lambda: q.squared_ratio(plan_of(clip_norm=1e-300, noise_stddev=1.0)),
            "clip_norm: found 1e-300, expected 1e-18",
        ),
        (lambda: q.quantised({"w": np.ones(1, np.float32)}, plan_of(clip_norm=1e20), "r"), "clip_norm: found 1e[+]20"),
        (lambda: q.quantised({"w": np.zeros(0, np.float32)}, plan_of(), "r"), "delta: found 0 values"),
        (lambda: q.quantised({"w": np.zeros((1 << 20) + 1, np.float32)}, plan_of(), "r"), "take a smaller part"),
        (lambda: plan_of(encoding="int8"), "encoding, measure: found int8, none"),
        (lambda: plan_of(measure="loss"), "encoding, measure: found float32, loss"),
        (lambda: plan_of(minimum_survivors=1), "minimum_survivors: found 1, whose sum is a device's own"),
        (lambda: DeltaPlan(minimum_survivors=3), "only trust 'distributed' has sums"),
    ],
)
def test_what_cannot_be_is_refused(act, message: str) -> None:
    with pytest.raises((PrivacyError, ValueError), match=message):
        act()
