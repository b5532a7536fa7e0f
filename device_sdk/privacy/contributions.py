"""What one device may add to the global counts in one round: few words, each with little weight."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan

__all__ = ["bounded_counts", "l1_sensitivity", "l2_sensitivity", "unbounded_counts", "weight_units"]


def bounded_counts(pending: NDArray[np.float64], plan: MarginalPlan) -> dict[int, int]:
    """Bound the counts of the utterances since the last report -> word id: weight in units of 1 / 256.

    At most ``plan.max_words`` words, the heaviest first (equal weights: the lower id), each clipped to
    ``plan.max_weight``; rounded down, so the L1 norm of the answer never exceeds ``l1_sensitivity(plan)`` whatever was
    said. A word's weight below one unit is left out. pending: float64 [n]. Raises PrivacyError for counts that are not
    finite and non-negative.
    """
    _check(pending)
    units = np.floor(np.minimum(pending * FIXED_POINT, weight_units(plan))).astype(np.int64)
    heaviest = np.argsort(-pending, kind="stable")[: plan.max_words]
    return {int(word): int(units[word]) for word in sorted(heaviest.tolist()) if units[word] > 0}


def unbounded_counts(total: NDArray[np.float64]) -> dict[int, int]:
    """Every count so far (Liu & Peng 2020, the sum of eq. 4 over all hypotheses) -> word id: units, rounded to the
    nearest.

    For mode ``paper``, which bounds nothing: no epsilon follows for a user. total: float64 [n]. Raises PrivacyError.
    """
    _check(total)
    units = np.rint(total * FIXED_POINT)
    return {int(word): int(units[word]) for word in np.flatnonzero(units)}


def l1_sensitivity(plan: MarginalPlan) -> int:
    """How much one device's report can change the sum of all counts (L1), in units of 1 / 256."""
    return plan.max_words * weight_units(plan)


def l2_sensitivity(plan: MarginalPlan) -> float:
    """How far one device's report can move the counts in the Euclidean norm, in units of 1 / 256."""
    return math.sqrt(plan.max_words) * weight_units(plan)


def weight_units(plan: MarginalPlan) -> int:
    """The largest count of one word in a report, in units of 1 / 256; at least one unit."""
    return max(1, math.floor(plan.max_weight * FIXED_POINT))


def _check(counts: NDArray[np.float64]) -> None:
    if counts.ndim != 1 or not np.isfinite(counts).all() or (counts.size and counts.min() < 0):
        raise PrivacyError("pending counts: expected finite, non-negative values of shape [n]; nothing was reported")
