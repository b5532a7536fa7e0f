"""Steps of a like size for every parameter: gradients are divided by the root of their usual size.

Plain SGD moves the few parameters with large gradients and leaves most of a recurrent network where it is, so a device
that takes one pass over a few utterances gains little. An adaptive optimizer would learn the sizes of gradients over
hundreds of steps that a device does not take. Here they come with the bundle, measured on public speech, and stay as
they are (not in the papers). Nothing of it depends on the user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.curvature import Curvature
from device_sdk.learning.step import Arrays

__all__ = ["Scales", "preconditioned", "scales"]

Scales = Mapping[str, tuple[NDArray[np.float32], ...]]
"""Parameter name -> for each axis, a factor at each index of it."""


def scales(curvature: Curvature, damping: float) -> Scales:
    """Factors prod_axis (v_axis / m + damping)^-1/2 m^-1/2, m the mean of v, with v as in the curvature.

    damping: share of a tensor's mean square that is added along each axis: larger is closer to plain SGD within a
    tensor. The factors of all parameters together have mean 1, so preconditioned gradients are about as long as plain.
    """
    found: dict[str, tuple[NDArray[np.float64], ...]] = {}
    total, count = 0.0, 0
    for name, vectors in curvature.items():
        mean = float(np.mean(vectors[0], dtype=np.float64))
        factors = [1.0 / np.sqrt(vector.astype(np.float64) / mean + damping) for vector in vectors]
        factors[0] /= math.sqrt(mean)
        found[name] = tuple(factors)
        total += math.prod(float(factor.sum()) for factor in factors)
        count += math.prod(factor.size for factor in factors)
    average = total / count
    return {
        name: tuple(
            (factor / average if axis == 0 else factor).astype(np.float32) for axis, factor in enumerate(factors)
        )
        for name, factors in found.items()
    }


def preconditioned(gradients: Arrays, factors: Scales) -> dict[str, NDArray[np.float32]]:
    """Every gradient times its factors along each axis; the arrays given are left as they are."""
    result: dict[str, NDArray[np.float32]] = {}
    for name, gradient in gradients.items():
        scaled = gradient
        for axis, factor in enumerate(factors[name]):
            scaled = scaled * factor.reshape([-1 if other == axis else 1 for other in range(gradient.ndim)])
        result[name] = scaled
    return result
