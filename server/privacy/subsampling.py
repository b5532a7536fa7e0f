"""What Poisson sampling leaves of a mechanism's privacy loss.

P0, P1: outputs without and with a user's report; q: the probability that the user is asked. Whoever cannot tell who was
asked sees the mixture M = (1 - q) P0 + q P1. For a threshold a = e^epsilon, the hockey-stick divergence H_a(P || P') =
sum max(0, p - a p') of the mixture follows from that of the mechanism, exactly:

    H_a(M || P0) = q H_b(P1 || P0),                b = 1 + (a - 1) / q             where b > 0, else 1 - a
    H_a(P0 || M) = (1 - a (1 - q)) H_c(P0 || P1),  c = a q / (1 - a (1 - q))       where a (1 - q) < 1, else 0

All words of a report come or stay away together, so it is the whole report's loss that is sampled, not each word's.
Where a user's reports are replaced by any others, both mixtures share (1 - q) P0, and for a >= 1 (advanced joint
convexity: Balle, Barthe and Gaboardi, Privacy Amplification by Subsampling, 2018) H_a <= q H_b of the pair of reports;
the other way round it is the same, so H_a = 1 - a + a H_(1/a) gives it for a < 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["subsampled"]

Array = NDArray[np.float64]


def subsampled(whole: Any, q: float, reach: float, interval: float, replaced: bool = False) -> Any:
    """The privacy loss distribution (dp-accounting's) of a mechanism under Poisson sampling.

    whole: the mechanism's own, the same in both directions, as additive symmetric noise has it. q: in (0, 1). reach: a
    loss, nats, beyond which its mass is as good as none. interval: width of the bins, which are joined by straight
    lines: the result is never below the truth. replaced: for reports that are exchanged, ``whole`` being of that pair.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    farthest = float(np.log1p(q * np.expm1(min(reach, 700.0)))) + interval
    bins = np.arange(-int(np.ceil(farthest / interval)) - 1, int(np.ceil(farthest / interval)) + 2)
    epsilons: Array = np.asarray(bins * interval, np.float64)

    def pmf(deltas: Array) -> Any:
        return pld_pmf.create_pmf_pessimistic_connect_dots(interval, bins, np.clip(deltas, 0.0, 1.0))

    removed = _removed(whole, q, epsilons)
    if replaced:
        mirrored = -np.expm1(epsilons) + np.exp(epsilons) * _removed(whole, q, -epsilons)
        both = pmf(np.where(epsilons >= 0, removed, mirrored))
        return PrivacyLossDistribution(both)
    return PrivacyLossDistribution(pmf(removed), pmf(_added(whole, q, epsilons)))


def _removed(whole: Any, q: float, epsilons: Array) -> Array:
    """H_a(M || P0) at a = e^epsilon [n]."""
    ratio = np.expm1(epsilons) / q
    inside = ratio > -1
    inner = np.log1p(np.where(inside, ratio, 0.0))
    return np.where(inside, q * _curve(whole, inner), -np.expm1(epsilons))


def _added(whole: Any, q: float, epsilons: Array) -> Array:
    """H_a(P0 || M) at a = e^epsilon [n]."""
    rest = 1 - np.exp(epsilons) * (1 - q)
    inside = rest > 0
    inner = epsilons + np.log(q) - np.log(np.where(inside, rest, 1.0))
    return np.where(inside, rest * _curve(whole, inner), 0.0)


def _curve(whole: Any, epsilons: Array) -> Array:
    """H_(e^epsilon) of the mechanism [n]; dp-accounting wants them in ascending order."""
    order = np.argsort(epsilons, kind="stable")
    found = np.empty_like(epsilons)
    found[order] = whole.get_delta_for_epsilon(epsilons[order].tolist())
    return found
