"""Discrete Laplace noise for integer counts, from opendp's exact sampler over the system's generator.

A floating-point Laplace sampler leaks through its low-order bits; integers in fixed point do not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.wire.messages import MarginalPlan

__all__ = ["laplace_scale", "noise_variance", "noised"]


def laplace_scale(plan: MarginalPlan) -> float:
    """Scale of the noise in fixed-point units, such that one release costs at most plan.epsilon."""
    return l1_sensitivity(plan) / plan.epsilon


def noise_variance(scale: float) -> float:
    """Variance of a discrete Laplace draw of the given scale: 2 p / (1 - p)^2 with p = exp(-1 / scale)."""
    if scale <= 0:
        return 0.0
    decay = math.exp(-1.0 / scale)
    return 2.0 * decay / math.expm1(-1.0 / scale) ** 2


def noised(counts: NDArray[np.int64], plan: MarginalPlan) -> NDArray[np.int64]:
    """``counts`` [words] in fixed-point units, each plus an independent draw. Secret randomness: no seed, ever.

    Raises PrivacyError if the sampler's own privacy map says that a release would cost more than plan.epsilon.
    """
    scale, bound = laplace_scale(plan), l1_sensitivity(plan)
    measurement = _measurement(scale)
    # The map rounds upwards: one part in 10^12 is its rounding, anything more is a wrong scale.
    if measurement.map(bound) > plan.epsilon * (1 + 1e-12):
        raise PrivacyError(f"noise scale {scale}: costs {measurement.map(bound)}, expected at most {plan.epsilon}")
    return np.asarray(measurement(counts.tolist()), dtype=np.int64)


def _measurement(scale: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)
