"""What one device reports of words in one round: few, each with little weight, and the noise that it adds itself: all
of it under trust ``local``, its share under ``distributed``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_ratio
from device_sdk.privacy.samplers import discrete_gaussians, discrete_laplaces
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from device_sdk.wire.words import is_word
from rescoring.marginals import surprise

SMALLEST_SHARE = 100
"""The smallest variance of a share, in squared units. A sum of discrete Gaussians is not quite one; from here on its
probabilities differ from it by less than one part in e^900 (Kairouz, Liu and Steinke, 2021, theorem 11)."""


def bounded_counts(pending: NDArray[np.float64], background: NDArray[np.float64], plan: MarginalPlan) -> dict[int, int]:
    """Bound the counts of the utterances since the last report -> word id: weight in units of 1 / 256. At most
    ``plan.max_words`` words, the most surprising first (``rescoring.marginals.surprise``; equal ones: the lower id),
    each clipped to ``plan.max_weight``; rounded down, so the L1 norm of the answer never exceeds
    ``l1_sensitivity(plan)`` whatever was said. A word's weight below one unit is left out. pending: float64 [n].
    background: the public u [n]. Raises PrivacyError for unusable counts."""
    _check(pending)
    units = np.floor(np.minimum(pending * FIXED_POINT, weight_units(plan))).astype(np.int64)
    said = np.flatnonzero(units)
    chosen = said[np.argsort(-surprise(pending, background)[said], kind="stable")[: plan.max_words]]
    return {int(word): int(units[word]) for word in sorted(chosen.tolist())}


def unbounded_counts(total: NDArray[np.float64]) -> dict[int, int]:
    """Every count so far (Liu & Peng 2020, the sum of eq. 4 over all hypotheses) -> word id: units, rounded. For mode
    ``paper``, which bounds nothing: no epsilon follows for a user. total: float64 [n]. Raises PrivacyError."""
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


def reported_words(given: Mapping[str, float], max_words: int) -> frozenset[str]:
    """At most ``max_words`` different words, those given most (equal weights: in alphabetical order), and only what may
    become a word of the list; no weights. given: word -> in how many utterances. Raises PrivacyError."""
    if max_words < 1:
        raise PrivacyError(f"max_words: found {max_words}, expected at least 1")
    fit = [word for word, weight in given.items() if weight > 0 and is_word(word)]
    return frozenset(sorted(fit, key=lambda word: (-given[word], word))[:max_words])


def locally_noised(counts: Mapping[int, int], words: int, plan: MarginalPlan) -> dict[int, int]:
    """Bounded counts (word id -> units) plus noise on every word of the list; zeros are left out. words: size of the
    list. Under ``local`` one report costs at most the plan's epsilon against whoever sees it; under ``distributed`` the
    sum of ``plan.minimum_survivors`` reports or more does, and a single one may only be seen masked. Raises
    PrivacyError under ``central``, where a device adds none."""
    if plan.trust == "central":
        raise PrivacyError("trust: found central, where the server adds the noise; expected local or distributed")
    if plan.mechanism == "discrete_gaussian":
        noise = discrete_gaussians(words, share_variance(plan))
    else:
        noise = discrete_laplaces(words, local_scale(plan))
    for word, count in counts.items():
        noise[word] += count
    return {int(word): int(noise[word]) for word in np.flatnonzero(noise)}


def local_scale(plan: MarginalPlan) -> int:
    """Scale of a device's own Laplace noise: its report's L1 sensitivity over the plan's epsilon, in whole units."""
    return math.ceil(Fraction(l1_sensitivity(plan)) / Fraction(plan.epsilon))


def gaussian_variance(plan: MarginalPlan) -> int:
    """Variance of one release's Gaussian noise, rounded up: (epsilon, delta) for the L2 sensitivity of a report."""
    ratio = gaussian_ratio(plan.epsilon, plan.delta)
    return max(1, math.ceil((l2_sensitivity(plan) / ratio) ** 2))


def share_variance(plan: MarginalPlan) -> int:
    """Variance of one device's Gaussian noise: all of it under ``local``, where one device survives; else the share of
    the smallest cohort that may. Raises PrivacyError for a share too small for sums to be as accounted."""
    variance = -(-gaussian_variance(plan) // plan.minimum_survivors)
    if plan.trust == "distributed" and variance < SMALLEST_SHARE:
        found = f"{plan.minimum_survivors}, which leaves a share of variance {variance} squared units"
        expected = f"at least {SMALLEST_SHARE}: ask for a smaller epsilon or fewer survivors"
        raise PrivacyError(f"minimum_survivors: found {found}; expected {expected}")
    return variance


def _check(counts: NDArray[np.float64]) -> None:
    if counts.ndim != 1 or not np.isfinite(counts).all() or (counts.size and counts.min() < 0):
        raise PrivacyError("pending counts: expected finite, non-negative values of shape [n]; nothing was reported")
