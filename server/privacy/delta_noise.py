"""The Gaussian noise that the server adds to a sum of clipped deltas, in whole steps of a grid.

A sum in float32 is rounded at every addition, by what the others sent: then one device more or less can move it by
more than the bound of a delta, which is all that noise is made for. So every value is cut to a whole number of steps,
and a delta beyond the bound is scaled down to it; both only make values smaller. Integers add up in any order to the
same, and what one device adds is its own delta alone.

C: clipping bound; z: noise multiplier. Steps are of z C / 2^20 and no delta is longer than C, so the ratio of what one
of them moves and of the noise is 1 / z to the last bit, and no low-order bit of a float tells anything. A draw at such
a scale is the sum of two smaller ones, k X + Y with k = 2^9, which are exact discrete Gaussians. Y is wider than k
times the integers' smoothing parameter at 2^-128 (s = 4096 sqrt(2 pi) > 5.4 k), so the sum's probabilities are those of
one discrete Gaussian to a factor of 1 + 2^-120 (Micciancio and Peikert, Hardness of SIS and LWE with Small Parameters,
2013, theorem 3.3): nothing beside any delta that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes, discrete_gaussians
from server.plans.round import SMALLEST_MULTIPLIER

__all__ = ["Grid", "in_steps", "in_units", "noise_grid", "noised_sum"]

Floats = Mapping[str, NDArray[np.float32]]
Steps = Mapping[str, NDArray[np.int64]]

STEPS = 1 << 20
"""Of the grid in one standard deviation, before it is made larger."""
COARSE = 1 << 9
FINE_VARIANCE = 1 << 24
COARSE_VARIANCE = (STEPS**2 - FINE_VARIANCE) // COARSE**2 + 1
"""One more than makes STEPS^2 of the two: more than float64 rounds of a step."""
BLOCK = 1 << 18
"""Values drawn at once: bounds the memory of the sampler."""


@dataclass(frozen=True, slots=True)
class Grid:
    """step: width, in the unit of a delta's values. bound: the largest L2 norm of a delta on the grid; None leaves it
    to what was accepted, where a delta holds noise of its own."""

    step: float
    bound: float | None = None


def in_steps(delta: Floats, grid: Grid) -> dict[str, NDArray[np.int64]]:
    """The delta in whole steps, no value farther from zero than it was, and in its L2 norm, times ``step``, at most the
    bound, exactly. The caller has validated it: its values are finite, and below 2^62 steps."""
    # What float64 rounds here, a few parts in 2^53 in all, is less than what is taken off.
    factor = (1 - 2.0**-48) / grid.step
    if grid.bound is not None:
        factor *= min(1.0, grid.bound / max(_norm_at_most(delta), np.finfo(np.float64).tiny))
    return {name: np.trunc(values.astype(np.float64) * factor).astype(np.int64) for name, values in delta.items()}


def in_units(total: Steps, grid: Grid) -> dict[str, NDArray[np.float32]]:
    """A sum of steps in the unit of a delta's values, rounded once."""
    return {name: np.asarray(values * grid.step, np.float32) for name, values in total.items()}


def _norm_at_most(delta: Floats) -> float:
    """L2 norm, or a little above. Squares of float32 are exact in float64; their sum is rounded once a value."""
    squares = sum(float(np.square(values, dtype=np.float64).sum()) for values in delta.values())
    return math.sqrt(squares) * (1 + (8 + sum(values.size for values in delta.values())) * 2.0**-53)


def noise_grid(clip_norm: float, noise_multiplier: float) -> Grid:
    """What the deltas are cut to that get this noise. Raises PrivacyError for a bound that is not a positive number or
    a multiplier below :data:`SMALLEST_MULTIPLIER`."""
    if not (0 < clip_norm < math.inf and SMALLEST_MULTIPLIER <= noise_multiplier < math.inf):
        raise PrivacyError(
            f"clip_norm, noise_multiplier: found {clip_norm!r}, {noise_multiplier!r}; expected positive numbers, the "
            f"second at least {SMALLEST_MULTIPLIER:g}"
        )
    return Grid(noise_multiplier * clip_norm / STEPS, clip_norm)


def noised_sum(
    total: Steps, clip_norm: float, noise_multiplier: float, source: RandomBytes
) -> dict[str, NDArray[np.float32]]:
    """The sum, in steps of :func:`noise_grid`, with independent noise of deviation z C on every value (at most one part
    in a million more), in the unit of the bound, rounded once. About 30 microseconds a value.

    source: secret bytes, the stream of a release's key; the same bytes make the same noise. Arrays are taken in the
    order of their names. Raises PrivacyError for a bound or a multiplier as :func:`noise_grid` does, and for a sum of
    2^62 steps or more.
    """
    grid = noise_grid(clip_norm, noise_multiplier)
    noised: dict[str, NDArray[np.float32]] = {}
    for name in sorted(total):
        values = total[name].reshape(-1)
        if values.size and not -(1 << 62) < int(values.min()) <= int(values.max()) < 1 << 62:
            raise PrivacyError(f"{name}: found a sum far above its bound; nothing is released")
        result = np.empty(values.size, np.float32)
        for start in range(0, values.size, BLOCK):
            part = values[start : start + BLOCK].copy()
            part += COARSE * discrete_gaussians(part.size, COARSE_VARIANCE, source)
            part += discrete_gaussians(part.size, FINE_VARIANCE, source)
            result[start : start + BLOCK] = part * grid.step
        noised[name] = result.reshape(total[name].shape)
    return noised
