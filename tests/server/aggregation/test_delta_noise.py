"""The server's noise on a sum of deltas: how much, from which bytes, and what it never lets through."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import kstest

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes
from server.aggregation.deltas import COARSE, COARSE_VARIANCE, FINE_VARIANCE, STEPS, noise_grid, noised_sum
from server.privacy.noise import key_stream

ZEROS = {"b": np.zeros(3, np.int64), "a": np.zeros((150, 40), np.int64)}
VARIANCE = COARSE**2 * COARSE_VARIANCE + FINE_VARIANCE


def key(letter: bytes = b"k") -> RandomBytes:
    return key_stream(letter * 32, "noise")


def test_the_noise_is_gaussian_of_the_deviation_stated() -> None:
    found = noised_sum(ZEROS, 0.5, 2.0, key())
    deviation = VARIANCE**0.5 * 2.0 * 0.5 / STEPS
    assert 1.0 < deviation < 1.000001, "z C, and a little more"
    assert found["a"].shape == (150, 40) and found["a"].dtype == np.float32
    assert kstest(found["a"].ravel() / deviation, "norm").pvalue > 1e-4


def test_the_same_key_draws_the_same_noise_whatever_the_order_of_names() -> None:
    one, other = noised_sum(ZEROS, 1.0, 1.0, key()), noised_sum(ZEROS, 1.0, 1.0, key(b"l"))
    same = noised_sum(dict(reversed(ZEROS.items())), 1.0, 1.0, key())
    assert all(np.array_equal(one[name], same[name]) for name in ZEROS)
    assert not np.array_equal(one["a"], other["a"])


def test_values_lie_on_the_grid_whatever_the_sum_was() -> None:
    """Not a bit below the grid is in it."""
    total = {"a": np.full(64, 3_294_199, np.int64)}
    found = noised_sum(total, 1.0, 0.25, key())["a"].astype(np.float64)
    steps = found / (0.25 / STEPS)
    assert np.abs(steps - np.rint(steps)).max() <= 0.5 * 2.0**-24 * np.abs(steps).max()


@pytest.mark.parametrize("clip_norm", [1e-3, 0.3, 1.0, 1e9 - 1])
@pytest.mark.parametrize("z", [1e-5, 0.3, 1.0, 10.0, 1e6])
def test_the_ratio_of_bound_and_noise_is_what_was_asked_for(clip_norm: float, z: float) -> None:
    """In fractions: nothing here is rounded."""
    bound = Fraction(clip_norm) / Fraction(noise_grid(clip_norm, z).step)
    ratio = bound**2 / VARIANCE * Fraction(z) ** 2
    assert 1 - Fraction(1, 10**6) <= ratio <= 1, "nor is there more noise than that"


def test_the_finer_part_smooths_the_coarser() -> None:
    """Micciancio and Peikert's condition: s >= k sqrt(ln(2 + 2 / e) / pi) at e = 2^-128."""
    smoothing = math.sqrt(math.log(2 + 2.0**129) / math.pi)
    assert math.sqrt(2 * math.pi * FINE_VARIANCE) >= math.sqrt(2) * COARSE * smoothing


@pytest.mark.parametrize(
    ("total", "clip_norm", "z", "message"),
    [
        (ZEROS, 0.0, 1.0, "clip_norm"),
        (ZEROS, 1.0, math.inf, "noise_multiplier"),
        (ZEROS, 1.0, 1e-6, "noise_multiplier"),
        ({"a": np.array([1 << 62], np.int64)}, 1.0, 1.0, "a: found a sum"),
        ({"a": np.array([-(1 << 63)], np.int64)}, 1.0, 1.0, "a: found a sum"),
    ],
)
def test_what_is_refused(total: dict[str, np.ndarray], clip_norm: float, z: float, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        noised_sum(total, clip_norm, z, key())
