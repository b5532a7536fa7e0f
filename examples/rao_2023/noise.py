"""Feedback that errs, to learn from what users do as unreliably as they do it (Rao et al. 2023, section 2.3.2, table
4)."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from device_sdk.errors import FeedbackError

__all__ = ["noisy_cost", "truncated_normal"]

_NORMAL = NormalDist()


def truncated_normal(sigma: float, size: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """U' ~ N(0, sigma^2) given that it lies in [0, 1], float64 [size]; 0 for sigma 0.

    By inversion of the distribution function, so exact to rounding, with one uniform number a value.
    FeedbackError: sigma is negative or not finite.
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise FeedbackError(f"sigma: found {sigma}, expected a number >= 0")
    uniform = generator.random(size)
    if sigma == 0:
        return np.zeros(size)
    mass = _NORMAL.cdf(1.0 / sigma) - 0.5
    # Through the lower tail: 0.5 - u * mass is never 0, while 0.5 + u * mass may round to 1.
    drawn = [-sigma * _NORMAL.inv_cdf(0.5 - share * mass) for share in uniform.tolist()]
    return np.clip(np.array(drawn, np.float64), 0.0, 1.0)


def noisy_cost(cost: float, sigma: float, generator: np.random.Generator) -> float:
    """M' = M + (-1)^M U', in [0, 1]: what a user who errs reports of a binary cost (Rao et al. 2023, results on noisy
    feedback). U': see :func:`truncated_normal`.

    E[M'] = (1 - 2 mu) E[M] + mu with mu = E[U'], so that learning keeps its direction while mu < 1/2.
    FeedbackError: ``cost`` is neither 0 nor 1; the formula is for binary costs only.
    """
    if cost not in (0.0, 1.0):
        raise FeedbackError(f"cost: found {cost}, expected 0 or 1: noise of this form is for binary costs")
    noise = float(truncated_normal(sigma, 1, generator)[0])
    return 1.0 - noise if cost else noise
