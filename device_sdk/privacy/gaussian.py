"""Epsilon of composed Gaussian mechanisms, exactly.

The composition of Gaussian mechanisms with ratios r_i = sensitivity_i / sigma_i is a Gaussian mechanism with ratio
sqrt(sum r_i^2), whose privacy profile is known in closed form (Balle and Wang, 2018, theorem 8). A numerical PLD
accountant approximates this number; here it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable

from device_sdk.errors import PrivacyError


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(r/2 - epsilon/r) - e^epsilon Phi(-r/2 - epsilon/r)."""
    if ratio <= 0:
        return 0.0
    upper = _normal_cdf(ratio / 2 - epsilon / ratio)
    # e^epsilon times a tail that underflows: add logarithms instead of multiplying.
    return max(0.0, upper - math.exp(epsilon + _log_normal_cdf(-ratio / 2 - epsilon / ratio)))


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The smallest epsilon with delta(epsilon) <= delta, rounded upwards. ratio: L2 sensitivity over total noise."""
    if math.isnan(ratio) or ratio < 0 or not 0 < delta < 1:
        raise PrivacyError(f"ratio {ratio!r}, delta {delta!r}: expected ratio >= 0 and delta inside (0, 1)")
    if ratio == 0:
        return 0.0
    if math.isinf(ratio) or ratio > 1e6:  # beyond this floats lose the difference of the two terms
        return math.inf
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    return _edge(lambda epsilon: gaussian_delta(ratio, epsilon) > delta, math.inf)[1]


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest ratio of L2 sensitivity to noise that is (epsilon, delta), rounded downwards. Raises PrivacyError."""
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise PrivacyError(f"epsilon {epsilon!r}, delta {delta!r}: expected epsilon > 0 and delta inside (0, 1)")
    return _edge(lambda ratio: gaussian_delta(ratio, epsilon) <= delta, 1e6)[0]


def _edge(holds: Callable[[float], bool], most: float) -> tuple[float, float]:
    """Two neighbours: up to the first, in (0, most], it holds, and from the second on it does not."""
    low, high = 0.0, 1.0
    while high < most and holds(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2))


def _log_normal_cdf(value: float) -> float:
    """log Phi(value) for value <= 0, accurate where Phi underflows (asymptotic series below -25)."""
    if value > -25:
        return math.log(_normal_cdf(value))
    square = value * value
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3
    return -square / 2 - math.log(-value) - 0.5 * math.log(2 * math.pi) + math.log(series)
