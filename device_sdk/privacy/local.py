"""Noise that a device adds itself, where the round's trust model is ``local``: the server never sees a true count."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from fractions import Fraction

from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.wire.messages import MarginalPlan

__all__ = ["discrete_laplace", "local_scale", "locally_noised"]


def locally_noised(counts: Mapping[int, int], words: int, plan: MarginalPlan) -> dict[int, int]:
    """Bounded counts (word id -> units) plus noise on every word of the list; zeros are left out.

    words: size of the list. One report costs at most the plan's epsilon against whoever sees it.
    """
    scale = local_scale(plan)
    noisy = {word: counts.get(word, 0) + discrete_laplace(scale) for word in range(words)}
    return {word: count for word, count in noisy.items() if count}


def local_scale(plan: MarginalPlan) -> int:
    """Scale of a device's own noise: its report's L1 sensitivity over the plan's epsilon, rounded up to units."""
    return math.ceil(Fraction(l1_sensitivity(plan)) / Fraction(plan.epsilon))


def discrete_laplace(scale: int) -> int:
    """One draw with P(x) proportional to exp(-|x| / scale), exact: integers and the system's generator only.

    Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), algorithm 2.
    """
    while True:
        rest = secrets.randbelow(scale)
        if not _bernoulli_exp(rest, scale):
            continue
        wholes = 0
        while _bernoulli_exp(1, 1):
            wholes += 1
        magnitude = rest + scale * wholes
        negative = secrets.randbelow(2)
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), for a fraction in [0, 1] (their algorithm 1)."""
    step = 1
    while secrets.randbelow(denominator * step) < numerator:
        step += 1
    return step % 2 == 1
