"""What of its learning a device sends: a difference of weights or a gradient, clipped, then noised with the system's
own randomness."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.errors import LearningError, PrivacyError
from device_sdk.learning.step import Arrays
from device_sdk.privacy.clipping import clip

if TYPE_CHECKING:  # learning starts without pydantic
    from device_sdk.wire.messages import DeltaPlan

__all__ = ["bounded", "difference", "noised", "secret_gaussian"]

_GRID = 1024
"""Grid steps to one standard deviation of the noise."""


def difference(local: Arrays, base: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """local - base for every parameter of the base. (A server optimizer's pseudo-gradient is minus the mean of these.)

    LearningError: names, shapes or values that do not belong together.
    """
    if set(local) != set(base):
        raise LearningError(f"delta: names differ: {sorted(set(local) ^ set(base))}; expected the same parameters")
    delta: dict[str, npt.NDArray[np.float32]] = {}
    for name, array in base.items():
        if local[name].shape != array.shape:
            raise LearningError(f"delta {name}: found shape {local[name].shape}, expected {array.shape}")
        delta[name] = local[name] - array
        if not np.all(np.isfinite(delta[name])):
            raise LearningError(f"delta {name}: found values that are not finite")
    return delta


def secret_gaussian(count: int) -> npt.NDArray[np.float64]:
    """``count`` standard normal values, float64, from the operating system's cryptographic generator.

    No seed can be set: whoever knew it could subtract the noise. Box-Muller over 53-bit uniforms that never are 0.
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[0]))
    angle = 2.0 * math.pi * uniform[1]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]


def noised(arrays: Arrays, stddev: float) -> dict[str, npt.NDArray[np.float32]]:
    """Every value plus Gaussian noise of standard deviation ``stddev``; 0 leaves the arrays as they are.

    The sum is rounded to a grid of a power of two near stddev / 1024, so that the low-order bits of a result do not
    tell which value it was made from (naive floating-point noise does).
    """
    if not (math.isfinite(stddev) and stddev >= 0):
        raise PrivacyError(f"noise_stddev: found {stddev}, expected a number >= 0")
    if stddev == 0:
        return dict(arrays)
    grid = 2.0 ** math.floor(math.log2(stddev / _GRID))
    result: dict[str, npt.NDArray[np.float32]] = {}
    for name, array in arrays.items():
        noise = secret_gaussian(array.size).reshape(array.shape)
        result[name] = (np.round((array.astype(np.float64) + stddev * noise) / grid) * grid).astype(np.float32)
    return result


def bounded(delta: Arrays, plan: DeltaPlan) -> tuple[dict[str, npt.NDArray[np.float32]], float]:
    """(delta clipped as the plan says, then noised; its L2 norm before). PrivacyError: impossible bound or noise."""
    within, norm = clip(delta, plan.clip_norm, plan.clipping)
    return noised(within, plan.noise_stddev), norm
