"""How much each device's delta counts in a round's mean: equations 8 to 10 of Gao et al. 2022.

The weights depend on what devices report of their data, so they are for rounds without noise: under noise, weights are
constant and the denominator is fixed. What they depend on is stored with a report, so a resumed round weighs it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.plans.round import RoundSettings

__all__ = ["by_loss", "by_word_error", "report_weights"]

Array = NDArray[np.float64]


def report_weights(settings: RoundSettings, reports: Sequence[Any]) -> list[float]:
    """A weight for each stored report, in units of one device: of mean 1 where they are shares (eq. 9 and 10)."""
    match settings.weighting:
        case "utterances":  # eq. 8, whose denominator is the sum of the weights
            return [float(min(report.utterances, settings.weight_limit)) for report in reports]
        case "loss":
            shares = by_loss([report.loss for report in reports])
        case "word_errors":
            shares = by_word_error([report.word_error for report in reports])
        case "uniform":
            return [1.0] * len(reports)
    return [float(share) for share in shares * len(reports)]


def by_loss(losses: Sequence[float]) -> Array:
    """alpha_k = exp(-L_k) / sum exp(-L) (eq. 9) -> [K], sum 1. losses: mean training loss of each device, nats.
    Raises ValueError naming a loss that is not finite."""
    return _softmax(-_finite(losses, "losses"))


def by_word_error(word_errors: Sequence[float]) -> Array:
    """alpha_k = exp(1 - wer_k) / sum exp(1 - wer) (eq. 10) -> [K], sum 1. word_errors: fractions, 0 or more; above 1 is
    possible. Raises ValueError naming one out of that domain."""
    errors = _finite(word_errors, "word_errors")
    if errors.size and errors.min() < 0:
        raise ValueError(f"word_errors[{int(errors.argmin())}]: found {errors.min():g}, expected 0 or more")
    return _softmax(1.0 - errors)


def _softmax(values: Array) -> Array:
    """The largest value is subtracted first, so that exp does not underflow."""
    if not values.size:
        return values
    scaled = np.exp(values - values.max())
    return np.asarray(scaled / scaled.sum(), np.float64)


def _finite(values: Sequence[float], name: str) -> Array:
    array = np.asarray(values, np.float64)
    for wrong in np.flatnonzero(~np.isfinite(array)):
        raise ValueError(f"{name}[{wrong}]: found {array[wrong]}, expected a finite number")
    return array
