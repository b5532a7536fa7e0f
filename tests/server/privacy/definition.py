"""What differential privacy says, for mechanisms whose output distributions are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["smallest_delta"]

Array = NDArray[np.float64]


def smallest_delta(outputs: Array, neighbours: Array, epsilon: float) -> float:
    """The smallest delta for which equation 7 of Liu & Peng 2020 holds for adjacent data sets, in this direction.

        P(M(d) in S) <= e^epsilon P(M(d') in S) + delta  for every set S of outputs

    The worst S is where P(M(d)) exceeds e^epsilon P(M(d')). outputs, neighbours: p and p', of the same outputs.
    """
    return float(np.maximum(outputs - np.exp(epsilon) * neighbours, 0.0).sum())
