"""The server's noise on a sum of deltas: how much, from which bytes, and what it never lets through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kstest

from device_sdk.errors import PrivacyError
from server.privacy.delta_noise import COARSE, FINE_VARIANCE, STEPS, deviation_of, noised_sum
from server.privacy.key_stream import key_stream

ZEROS = {"b": np.zeros(3, np.float32), "a": np.zeros((150, 40), np.float32)}


def test_the_noise_is_gaussian_of_the_deviation_stated() -> None:
    found = noised_sum(ZEROS, 0.5, 2.0, key_stream(b"k" * 32, "noise"))
    deviation = deviation_of(6003, 0.5, 2.0)
    assert 1.0 < deviation < 1.0005, "z C, and a little more"
    assert found["a"].shape == (150, 40) and found["a"].dtype == np.float32
    assert kstest(found["a"].ravel() / deviation, "norm").pvalue > 1e-4


def test_the_same_key_draws_the_same_noise_whatever_the_order_of_names() -> None:
    one = noised_sum(ZEROS, 1.0, 1.0, key_stream(b"k" * 32, "noise"))
    same = noised_sum(dict(reversed(ZEROS.items())), 1.0, 1.0, key_stream(b"k" * 32, "noise"))
    other = noised_sum(ZEROS, 1.0, 1.0, key_stream(b"l" * 32, "noise"))
    assert all(np.array_equal(one[name], same[name]) for name in ZEROS)
    assert not np.array_equal(one["a"], other["a"])


def test_values_lie_on_the_grid_whatever_the_sum_was() -> None:
    """Not a bit of the sum's own below the grid is left."""
    total = {"a": np.full(64, math.pi * 1e-3, np.float32)}
    found = noised_sum(total, 1.0, 0.25, key_stream(b"k" * 32, "noise"))["a"].astype(np.float64)
    steps = found / (0.25 / STEPS)
    assert np.abs(steps - np.rint(steps)).max() <= 0.5 * 2.0**-24 * np.abs(steps).max()


@pytest.mark.parametrize("values", [1, 2_300_000, 60_000_000])
@pytest.mark.parametrize("z", [0.3, 1.0, 10.0])
def test_rounding_never_makes_the_ratio_worse(values: int, z: float) -> None:
    moved = 1.0 + 1e-4 + math.sqrt(values) * z / STEPS  # what two sums differ by after rounding, in C
    assert moved / deviation_of(values, 1.0, z) <= 1.0 / z


def test_the_finer_part_smooths_the_coarser() -> None:
    """Micciancio and Peikert's condition: s >= k sqrt(ln(2 + 2 / e) / pi) at e = 2^-128."""
    smoothing = math.sqrt(math.log(2 + 2.0**129) / math.pi)
    assert math.sqrt(2 * math.pi * FINE_VARIANCE) >= math.sqrt(2) * COARSE * smoothing


@pytest.mark.parametrize(
    ("total", "clip_norm", "z", "message"),
    [
        (ZEROS, 0.0, 1.0, "clip_norm"),
        (ZEROS, 1.0, math.inf, "noise_multiplier"),
        ({"a": np.array([math.nan], np.float32)}, 1.0, 1.0, "a: found a sum that is not finite"),
        ({"a": np.array([1e30], np.float32)}, 1.0, 1.0, "a: found a sum"),
    ],
)
def test_what_is_refused(total: dict[str, np.ndarray], clip_norm: float, z: float, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        noised_sum(total, clip_norm, z, key_stream(b"k" * 32, "noise"))
