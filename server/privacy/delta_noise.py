"""The Gaussian noise that the server adds to a sum of clipped deltas.

C: clipping bound; z: noise multiplier; D: values of a model. The sum is rounded to a grid of z C / 2^20 and integers
are added to it, so no low-order bit of a float tells anything. Rounding moves two neighbouring sums apart by at most
sqrt(D) steps, and a delta may pass its bound by what float32 rounds: the noise is larger by as much, so that the ratio
of the two is never above 1 / z.

A draw at such a scale is the sum of two smaller ones, k X + Y with k = 2^9, which are exact discrete Gaussians. Y is
wider than k times the integers' smoothing parameter at 2^-128 (s = 4096 sqrt(2 pi) > 5.4 k), so the sum's probabilities
are those of one discrete Gaussian to a factor of 1 + 2^-120 (Micciancio and Peikert, Hardness of SIS and LWE with Small
Parameters, 2013, theorem 3.3): nothing beside any delta that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes, discrete_gaussians

__all__ = ["deviation_of", "noised_sum"]

Weights = Mapping[str, NDArray[np.float32]]

STEPS = 1 << 20
"""Of the grid in one standard deviation, before it is made larger."""
COARSE = 1 << 9
FINE_VARIANCE = 1 << 24
FLOAT_ROUNDING = 1e-4
"""By how much of its bound a delta in float32 may pass it (:func:`server.aggregation.validation.norm_bound`)."""
BLOCK = 1 << 18
"""Values drawn at once: bounds the memory of the sampler."""


def noised_sum(
    total: Weights, clip_norm: float, noise_multiplier: float, source: RandomBytes
) -> dict[str, NDArray[np.float32]]:
    """The sum with independent noise on every value, of :func:`deviation_of`. About 30 microseconds a value.

    source: secret bytes, the stream of a release's key; the same bytes make the same noise. Arrays are taken in the
    order of their names. Raises PrivacyError for a bound or a multiplier that is not positive, and for a sum that is
    not finite.
    """
    if not (0 < clip_norm < math.inf and 0 < noise_multiplier < math.inf):
        raise PrivacyError(
            f"clip_norm, noise_multiplier: found {clip_norm!r}, {noise_multiplier!r}; expected positive numbers"
        )
    step = noise_multiplier * clip_norm / STEPS
    coarse = _coarse_variance(sum(array.size for array in total.values()), noise_multiplier)
    noised: dict[str, NDArray[np.float32]] = {}
    for name in sorted(total):
        values = np.asarray(total[name], np.float64).reshape(-1) / step
        if not (np.abs(values) < 2.0**62).all():
            raise PrivacyError(f"{name}: found a sum that is not finite or far above its bound; nothing is released")
        result = np.empty(values.size, np.float32)
        for start in range(0, values.size, BLOCK):
            part = np.rint(values[start : start + BLOCK]).astype(np.int64)
            part += COARSE * discrete_gaussians(part.size, coarse, source)
            part += discrete_gaussians(part.size, FINE_VARIANCE, source)
            result[start : start + BLOCK] = part * step
        noised[name] = result.reshape(total[name].shape)
    return noised


def deviation_of(values: int, clip_norm: float, noise_multiplier: float) -> float:
    """The standard deviation of one value's noise in a model of ``values``: z C, and a little more."""
    variance = COARSE**2 * _coarse_variance(values, noise_multiplier) + FINE_VARIANCE
    return math.sqrt(variance) * noise_multiplier * clip_norm / STEPS


def _coarse_variance(values: int, noise_multiplier: float) -> int:
    larger = 1.0 + FLOAT_ROUNDING + noise_multiplier * math.sqrt(values) / STEPS
    return math.ceil(((larger * STEPS) ** 2 - FINE_VARIANCE) / COARSE**2)
