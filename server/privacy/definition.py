"""What differential privacy says: equation 7 of Liu & Peng 2020, for mechanisms whose output distributions are
known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["is_private", "smallest_delta"]


def smallest_delta(outputs: ArrayLike, neighbours: ArrayLike, epsilon: float) -> float:
    """The smallest delta for which equation 7 of Liu & Peng 2020 holds for a pair of adjacent data sets, in this
    direction.

        P(M(d) in S) <= e^epsilon P(M(d') in S) + delta  for every set S of outputs

    The worst S is where P(M(d)) exceeds e^epsilon P(M(d')), so delta = sum over outputs of max(0, p - e^epsilon p').
    outputs, neighbours: p and p', probabilities of the same outputs, same shape. Raises ValueError.
    """
    own, other = np.asarray(outputs, np.float64), np.asarray(neighbours, np.float64)
    if own.shape != other.shape or not own.size:
        raise ValueError(f"neighbours: found shape {other.shape}, expected {own.shape} as in outputs, not empty")
    for name, found in (("outputs", own), ("neighbours", other)):
        if not np.isfinite(found).all() or found.min() < 0 or found.sum() > 1 + 1e-9:
            raise ValueError(f"{name}: expected probabilities, with a sum of at most 1")
    if not epsilon >= 0:
        raise ValueError(f"epsilon: found {epsilon!r}, expected 0 or more")
    return float(np.maximum(own - np.exp(epsilon) * other, 0.0).sum())


def is_private(outputs: ArrayLike, neighbours: ArrayLike, epsilon: float, delta: float = 0.0) -> bool:
    """Whether equation 7 of Liu & Peng 2020 holds both ways round, but for rounding of one part in 10^12."""
    worst = max(smallest_delta(outputs, neighbours, epsilon), smallest_delta(neighbours, outputs, epsilon))
    return worst <= delta + 1e-12
