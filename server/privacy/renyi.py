"""Rényi accounting of the Poisson-sampled Gaussian mechanism, at one order, by quadrature.

q: chance that a user takes part in a round; z: noise multiplier (standard deviation of the noise in a round's sum over
the clipping bound); alpha: order, above 1; T: rounds. Logarithms are natural. The series that accountants use stops
converging for small z and orders between whole numbers, where tables are still printed; the integral does not.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["epsilon_at", "renyi_divergence"]

_REACH = 14.0
"""Standard deviations of noise beyond the peaks: what is left out is below e^-98 of them."""
_STEPS = 50
"""Points in a standard deviation. The trapezoid rule is exact to the last digits for a Gaussian with two or more."""


def renyi_divergence(q: float, z: float, alpha: float) -> float:
    """Rényi divergence of order alpha of one round, nats (Mironov, Talwar and Zhang 2019, section 3.3):

        log E_{x ~ N(0, z^2)} [(1 - q + q exp((2 x - 1) / (2 z^2)))^alpha] / (alpha - 1)

    Raises ValueError for q outside (0, 1], z not above 0 or alpha not above 1.
    """
    if not (0 < q <= 1 and z > 0 and alpha > 1):
        raise ValueError(f"q, z, alpha: found {q!r}, {z!r}, {alpha!r}; expected 0 < q <= 1, z > 0 and alpha > 1")
    if q == 1:
        return alpha / (2 * z * z)
    step = z / _STEPS
    # The integrand has one peak at 0, of those not drawn, and one at alpha, of those drawn every time.
    x = np.arange(-_REACH * z, alpha + _REACH * z, step)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
    exponent = alpha * ratio - np.square(x) / (2 * z * z)
    top = float(exponent.max())
    integral = float(np.exp(exponent - top).sum()) * step / (z * math.sqrt(2 * math.pi))
    return (top + math.log(integral)) / (alpha - 1)


def epsilon_at(q: float, z: float, rounds: int, delta: float, alpha: float) -> float:
    """Epsilon at delta of T rounds, from the divergence of one order (Canonne, Kamath and Steinke 2020, prop. 12):

    T R_alpha + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta: found {delta!r}, expected a number in (0, 1)")
    divergence = rounds * renyi_divergence(q, z, alpha)
    return max(0.0, divergence + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1))
