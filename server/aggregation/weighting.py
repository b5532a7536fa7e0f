"""How much each device's delta counts in a round's mean: equations 8 to 10 of Gao et al. 2022.

K: devices of a round. Each function gives the coefficients alpha_k [K] float64, which sum to 1; no device gives none.
They depend on what the devices report of their data, so they are for rounds without noise: under
noise, weights are constant and the denominator is fixed. ValueError names a report that is out of its domain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_examples", "by_loss", "by_word_error", "uniform"]

Array = NDArray[np.float64]


def uniform(devices: int) -> Array:
    """1 / K for each: plain averaging."""
    return np.full(devices, 1.0 / devices) if devices else np.zeros(0)


def by_examples(examples: Sequence[float], limit: float | None = None) -> Array:
    """alpha_k = n_k / sum n (eq. 8). limit: what a device's examples count at most, None for no limit."""
    counts = _checked(examples, "examples")
    if counts.size and counts.min() <= 0:
        raise ValueError(f"examples[{int(counts.argmin())}]: found {counts.min():g}, expected more than 0")
    kept = counts if limit is None else np.minimum(counts, limit)
    return kept / kept.sum() if kept.size else kept


def by_loss(losses: Sequence[float]) -> Array:
    """alpha_k = exp(-L_k) / sum exp(-L) (eq. 9). losses: mean training loss of each device, nats.

    The softmax is taken after the smallest loss is subtracted, which changes nothing but keeps exp from underflowing.
    """
    return _softmax(-_checked(losses, "losses"))


def by_word_error(word_errors: Sequence[float]) -> Array:
    """alpha_k = exp(1 - wer_k) / sum exp(1 - wer) (eq. 10). word_errors: fractions, 0 or more; above 1 is possible."""
    errors = _checked(word_errors, "word_errors")
    if errors.size and errors.min() < 0:
        raise ValueError(f"word_errors[{int(errors.argmin())}]: found {errors.min():g}, expected 0 or more")
    return _softmax(1.0 - errors)


def _softmax(values: Array) -> Array:
    if not values.size:
        return values
    scaled = np.exp(values - values.max())
    return np.asarray(scaled / scaled.sum(), np.float64)


def _checked(values: Sequence[float], name: str) -> Array:
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name}: found shape {array.shape}, expected one number a device")
    if array.size and not np.isfinite(array).all():
        wrong = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name}[{wrong}]: found {array[wrong]}, expected a finite number")
    return array
