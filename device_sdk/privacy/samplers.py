"""Exact draws of integer noise: integers and the system's generator only, no floats, no seed.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), algorithms 1 to 3.
"""

from __future__ import annotations

import math
import secrets

from device_sdk.errors import PrivacyError

__all__ = ["discrete_gaussian", "discrete_laplace"]


def discrete_laplace(scale: int) -> int:
    """One draw with P(x) proportional to exp(-|x| / scale). Raises PrivacyError for a scale below 1."""
    if scale < 1:
        raise PrivacyError(f"scale: found {scale}, expected at least 1 unit")
    while True:
        rest = secrets.randbelow(scale)
        if not _bernoulli_exp(rest, scale):
            continue
        wholes = 0
        while _bernoulli_exp(1, 1):
            wholes += 1
        magnitude = rest + scale * wholes
        negative = secrets.randbelow(2)
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: int) -> int:
    """One draw with P(x) proportional to exp(-x^2 / (2 variance)) over the integers.

    Raises PrivacyError for a variance below 1.
    """
    if variance < 1:
        raise PrivacyError(f"variance: found {variance}, expected at least 1 squared unit")
    scale = math.isqrt(variance) + 1
    while True:
        draw = discrete_laplace(scale)
        if _bernoulli_exp((abs(draw) * scale - variance) ** 2, 2 * variance * scale * scale):
            return draw


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), for a fraction of 0 or more."""
    while numerator > denominator:
        if not _bernoulli_exp(1, 1):
            return False
        numerator -= denominator
    step = 1
    while secrets.randbelow(denominator * step) < numerator:
        step += 1
    return step % 2 == 1
