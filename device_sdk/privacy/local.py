"""Noise that a device adds itself: all of it under trust ``local``, its share under ``distributed``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import l1_sensitivity, l2_sensitivity
from device_sdk.privacy.gaussian import gaussian_ratio
from device_sdk.privacy.samplers import discrete_gaussians, discrete_laplaces
from device_sdk.wire.messages import MarginalPlan

__all__ = ["SMALLEST_SHARE", "gaussian_variance", "local_scale", "locally_noised", "share_variance"]

SMALLEST_SHARE = 100
"""The smallest variance of a share, in squared units. A sum of discrete Gaussians is not quite one; from here on its
probabilities differ from it by less than one part in e^900 (Kairouz, Liu and Steinke, 2021, theorem 11)."""


def locally_noised(counts: Mapping[int, int], words: int, plan: MarginalPlan) -> dict[int, int]:
    """Bounded counts (word id -> units) plus noise on every word of the list; zeros are left out.

    words: size of the list. Under ``local`` one report costs at most the plan's epsilon against whoever sees it; under
    ``distributed`` the sum of ``plan.minimum_survivors`` reports or more does, and a single one may only be seen
    masked. Raises PrivacyError under ``central``, where a device adds none.
    """
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
    """Variance of the Gaussian noise of one release, in squared units, rounded up: the least that gives (epsilon,
    delta) for the L2 sensitivity of one device's report."""
    ratio = gaussian_ratio(plan.epsilon, plan.delta)
    return max(1, math.ceil((l2_sensitivity(plan) / ratio) ** 2))


def share_variance(plan: MarginalPlan) -> int:
    """Variance of one device's Gaussian noise: all of it under ``local``, where one device survives; else the share of
    the smallest cohort that may.

    Raises PrivacyError for a share too small for sums of shares to be what they are accounted as.
    """
    variance = -(-gaussian_variance(plan) // plan.minimum_survivors)
    if plan.trust == "distributed" and variance < SMALLEST_SHARE:
        raise PrivacyError(
            f"minimum_survivors: found {plan.minimum_survivors}, which leaves a share of variance {variance} squared "
            f"units; expected at least {SMALLEST_SHARE}: ask for a smaller epsilon or fewer survivors"
        )
    return variance
