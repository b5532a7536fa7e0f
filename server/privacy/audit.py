"""A canary attack on the samplers that ship: how much does a release tell about one contribution, at least?

Half of the runs hold the canary, one word said as often as a report may say it; half do not. The attacker sees the
noised count and bets on events fixed beforehand. An event whose chances under the two differ by more than e^epsilon
disproves epsilon; confidence bounds on the two chances make that a lower bound on epsilon (Clopper and Pearson, shared
out among the bets). One of the events looks at the bits of a float that no count with a canary in it can have.

Of deltas the canary is one of the clipping bound, along one value, and the attacker sees how long the noised sum is
along it. Counts are in words, and lengths in bounds, such that the canary is 1. n: runs of one kind."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.privacy.contributions import locally_noised, weight_units
from device_sdk.privacy.gaussian import gaussian_epsilon
from device_sdk.privacy.quantised import noised, rounded, summed
from device_sdk.privacy.samplers import discrete_gaussians, discrete_laplaces
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.privacy.costs import calibrate_shares
from server.privacy.noise import GRID, add_noise, key_stream, new_key, plan_noise

Draws = NDArray[np.float64]
Plan = MarginalPlan | DeltaPlan
Sampler = Callable[[bool, int, Any], Draws]
"""(whether the canary is there, n, plan) -> n noised counts of one word, or lengths along one value."""

EVENTS: Mapping[str, Callable[[Draws], NDArray[np.bool_]]] = {
    "at least the canary": lambda counts: counts >= 1.0,
    "at most nothing": lambda counts: counts <= 0.0,
    # 1 + noise, rounded, is a multiple of 2^-53 wherever it is; noise around 0 has finer bits.
    "bits below the canary's": lambda counts: np.ldexp(counts, 53) != np.floor(np.ldexp(counts, 53)),
}
"""What the attacker bets on, fixed before anything is drawn."""

CHUNK = 50_000


@dataclass(frozen=True, slots=True)
class Finding:
    """What the attack found. runs: of both kinds together. epsilon, delta: as claimed; lower_bound: on epsilon at that
    delta, which holds with ``confidence``; event: the bet that gave it, with or without the canary being likelier."""

    sampler: str
    runs: int
    epsilon: float
    delta: float
    lower_bound: float
    event: str
    confidence: float

    @property
    def flagged(self) -> bool:
        """The claim does not hold."""
        return self.lower_bound > self.epsilon

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"flagged": self.flagged}


def audit(
    name: str,
    runs: int,
    epsilon: float = 1.0,
    confidence: float = 0.95,
    progress: Callable[[int], None] = lambda _: None,
) -> Finding:
    """Attack a sampler of ``SHIPPED`` or ``BROKEN`` by name. runs: at least 2. progress: told of runs that are done."""
    plan, draw = (SHIPPED | BROKEN)[name]
    delta = _DELTA if isinstance(plan, DeltaPlan) or plan.mechanism == "discrete_gaussian" else 0.0
    plan = _claiming(plan, epsilon)
    each = runs // 2
    hits = {(event, canary): 0 for event in EVENTS for canary in (False, True)}
    for start in range(0, each, CHUNK):
        size = min(CHUNK, each - start)
        for canary in (False, True):
            counts = draw(canary, size, plan)
            for event, found in EVENTS.items():
                hits[event, canary] += int(np.count_nonzero(found(counts)))
            progress(size)
    risk = (1 - confidence) / len(hits) / 2  # either of the two chances of either bet may be missed
    best, best_event = 0.0, ""
    for (event, canary), likelier in hits.items():
        bounds = clopper_pearson(likelier, each, risk)[0], clopper_pearson(hits[event, not canary], each, risk)[1]
        if (bound := _epsilon(*bounds, delta)) > best:
            best, best_event = bound, f"{event}, {'with' if canary else 'without'} the canary"
    return Finding(name, 2 * each, epsilon, delta, best, best_event, confidence)


def _claiming(plan: Plan, epsilon: float) -> Plan:
    """The plan with the noise of which this epsilon is printed."""
    if isinstance(plan, DeltaPlan):
        return calibrate_shares(plan, epsilon, 1, _DELTA)
    return plan.model_copy(update={"epsilon": epsilon, "delta": _DELTA})


def clopper_pearson(hits: int, runs: int, risk: float) -> tuple[float, float]:
    """(lower, upper) bound on a chance seen ``hits`` times in ``runs``; each is wrong with a chance of ``risk``."""
    from scipy.special import betaincinv

    lower = float(betaincinv(hits, runs - hits + 1, risk)) if hits else 0.0
    upper = float(betaincinv(hits + 1, runs - hits, 1 - risk)) if hits < runs else 1.0
    return lower, upper


def _epsilon(likelier: float, rarer: float, delta: float) -> float:
    """The least epsilon that allows an event of chance ``likelier`` with, and ``rarer`` without. With a delta the noise
    is Gaussian: two chances give its ratio of shift to deviation, which gives epsilon."""
    if likelier <= rarer:
        return 0.0
    if delta == 0:
        return math.log(likelier / rarer)
    if likelier >= 1:
        return math.inf
    return gaussian_epsilon(NormalDist().inv_cdf(likelier) - NormalDist().inv_cdf(rarer), delta)


def _central(canary: bool, runs: int, plan: MarginalPlan) -> Draws:
    unit = weight_units(plan)
    return add_noise(np.full(runs, unit * canary, np.int64), plan, key_stream(new_key(), "audit")) / unit


def _on_devices(canary: bool, runs: int, plan: MarginalPlan) -> Draws:
    """The sum of the smallest cohort's reports, one of which may hold the canary."""
    unit, total = weight_units(plan), np.zeros(runs)
    for device in range(plan.minimum_survivors):
        report = locally_noised(dict.fromkeys(range(runs), unit) if canary and device == 0 else {}, runs, plan)
        total[list(report)] += list(report.values())
    return total / unit


def _half_the_scale(canary: bool, runs: int, plan: MarginalPlan) -> Draws:
    unit, noise = weight_units(plan), plan_noise(plan)
    if noise.mechanism == "discrete_laplace":
        draws = discrete_laplaces(runs, Fraction(noise.scale / 2).limit_denominator(GRID))
    else:
        draws = discrete_gaussians(runs, math.ceil(noise.variance / 4))
    return (unit * canary + draws) / unit


def _floats(canary: bool, runs: int, plan: MarginalPlan) -> Draws:
    # Fresh randomness and the right scale: what is wrong with it is that it is a float.
    return np.float64(canary) + np.random.default_rng().laplace(scale=1 / plan.epsilon, size=runs)


VALUES = 64
"""Of a delta that holds the canary."""


def _masked(canary: bool, runs: int, plan: DeltaPlan) -> Draws:
    """The sum of the smallest group's deltas as integers, one of which may be the canary."""
    total = np.zeros((runs, VALUES), np.int64)
    for device in range(plan.minimum_survivors):
        deltas = np.zeros((runs, VALUES))
        deltas[:, 0] = plan.clip_norm * (canary and device == 0)
        total += noised(rounded(deltas, plan, "audit"), plan)
    return summed(total, plan, "audit")[:, 0] / plan.clip_norm


def _half_masked(canary: bool, runs: int, plan: DeltaPlan) -> Draws:
    return _masked(canary, runs, plan.model_copy(update={"noise_stddev": plan.noise_stddev / 2}))


_DELTA = 1e-6
_LAPLACE = MarginalPlan(max_words=1)
_GAUSSIAN = MarginalPlan(max_words=1, mechanism="discrete_gaussian")

_MASKED = DeltaPlan(trust="distributed", minimum_survivors=2, bits=12)

SHIPPED: dict[str, tuple[Plan, Sampler]] = {
    "server, discrete Laplace": (_LAPLACE, _central),
    "server, discrete Gaussian": (_GAUSSIAN, _central),
    "device, discrete Laplace": (MarginalPlan(max_words=1, trust="local"), _on_devices),
    "devices' shares, discrete Gaussian": (
        MarginalPlan(max_words=1, mechanism="discrete_gaussian", trust="distributed", minimum_survivors=2),
        _on_devices,
    ),
    "devices' shares, masked deltas": (_MASKED, _masked),
}
"""The samplers of the rounds, by name, with plans in which the canary is all that a report may hold."""

BROKEN: dict[str, tuple[Plan, Sampler]] = {
    "half the scale, discrete Laplace": (_LAPLACE, _half_the_scale),
    "half the scale, discrete Gaussian": (_GAUSSIAN, _half_the_scale),
    "half the share, masked deltas": (_MASKED, _half_masked),
    "numpy's Laplace, in floats": (_LAPLACE, _floats),
}
"""Samplers that do not keep what they claim: the attack must find them, else its silence means nothing."""
