"""Lambda by device: the one that would have predicted best what was decoded so far.

Eq. 1 of Liu & Peng 2020 over the background unigram itself is p_lambda(w) = u(w) (g(w) / u(w))^lambda / Z, so each word
tells how much each lambda would have gained on it, with the g of before it was heard:

    gain(lambda) = lambda * log(g(w) / u(w)) - log Z(lambda),    Z(lambda) = sum over v of u(v) (g(v) / u(v))^lambda

The gain over a language model p(w | h) is the same, up to its own Z(h), which a unigram stands in for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GRID", "best_strength", "predictive_gains"]

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Strengths (lambda) that are tried."""
_START = 0.5

Array = NDArray[np.float64]


def predictive_gains(counts: Array, marginal: Array, background: Array, grid: Sequence[float] = GRID) -> Array:
    """Summed gain of each lambda on weighted word counts -> [len(grid)], nats; lambda 1 has what g gains over u.

    counts: [n] of one utterance; marginal: g as it was before that utterance; background: u, positive.
    """
    ratio = np.log(np.maximum(marginal, 1e-300)) - np.log(background)
    powers = np.multiply.outer(np.asarray(grid, dtype=np.float64), ratio)
    log_z = np.log(np.exp(powers) @ background)
    return np.asarray(powers @ counts - log_z * counts.sum(), dtype=np.float64)


def best_strength(gains: ArrayLike, start: float, grid: Sequence[float] = GRID) -> float:
    """The mean of lambda under what is believed of it: half on ``start`` at first, the rest spread over the grid.

    gains: summed predictive gains so far [len(grid)]. Raises ValueError for another number of gains.
    """
    found, tried = np.asarray(gains, dtype=np.float64), np.asarray(grid, dtype=np.float64)
    if found.shape != tried.shape:
        raise ValueError(f"gains: found {found.shape}, expected [{len(tried)}], one for each lambda of the grid")
    at_start = float(np.interp(start, tried, found))
    belief = np.exp(np.append(found, at_start) - max(found.max(), at_start))
    belief *= np.append(np.full(len(tried), (1 - _START) / len(tried)), _START)
    return float((belief @ np.append(tried, start)) / belief.sum())
