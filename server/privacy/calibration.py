"""The noise of deltas, planned: how much a target epsilon needs, what it leaves of the signal, and how many users make
it bearable.

N: population; L: cohort, q = L / N: chance that a user takes part in a round; T: rounds; z: noise multiplier; C:
clipping bound; d: values of a delta. The mean of a round gets Gaussian noise of deviation z C / L in every value, whose
norm is z C sqrt(d) / L but for one part in sqrt(2 d). The mean delta itself has the norm a C, a <= 1: clipped deltas
that all point the same way have a = 1, those of different people far less. The *loss of signal* is the one norm over
the other, z sqrt(d) / (L a): C cancels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scipy.optimize import brentq

from device_sdk.errors import PrivacyError
from device_sdk.privacy.spending import stated
from server.privacy.charges import Charge
from server.privacy.composition import Spent, compose
from server.privacy.sampled_gaussian import Plan, rdp_epsilon

CLOSE, COARSE = 1e-3, 1e-2
"""To which part multipliers, and cohorts, are found."""
LEAST_NOISE, MOST_NOISE = 1e-2, 1e6


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of T rounds: population N, rounds T, the target epsilon of a user at delta, values d, clipping
    bound C, and the alignment a: the norm of the mean delta over C. PrivacyError: a value outside its domain."""

    population: int
    rounds: int
    epsilon: float
    delta: float
    values: int
    clip_norm: float = 1.0
    alignment: float = 1.0

    def __post_init__(self) -> None:
        for name in ("population", "rounds", "values"):
            if getattr(self, name) < 1:
                raise PrivacyError(f"{name}: found {getattr(self, name)}, expected 1 or more")
        for name in ("epsilon", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise PrivacyError(f"{name}: found {getattr(self, name)!r}, expected a number above 0")
        for name, closed in (("delta", False), ("alignment", True)):
            value = getattr(self, name)
            if not (0 < value < 1 or (closed and value == 1)):
                raise PrivacyError(f"{name}: found {value!r}, expected a number between 0 and 1")

    def loss(self, cohort: int, noise_multiplier: float) -> float:
        """Norm of the mean's noise over the norm of the mean delta."""
        return noise_multiplier * math.sqrt(self.values) / (cohort * self.alignment)


def needed_noise(wish: Wish, cohort: int) -> float:
    """The smallest noise multiplier z at which T rounds, Poisson-sampled at L / N, cost a user at most the wished
    epsilon, as the ledger composes them; to ``CLOSE``, rounded upwards. PrivacyError: a cohort that is none, or an
    epsilon that no noise reaches."""
    if not 1 <= cohort <= wish.population:
        raise PrivacyError(f"cohort: found {cohort}, expected 1 to the population, {wish.population}")
    rough = quick_noise(wish, cohort)
    if rough is None:
        raise PrivacyError(
            f"epsilon: found {stated(wish.epsilon)}, which no noise below {MOST_NOISE:g} clip norms reaches"
        )
    # Distributions need less noise than divergences do, a third less at most where it matters.
    found = _root(lambda z: ledger_epsilon(wish, cohort, z) / wish.epsilon, rough / 2, rough, CLOSE)
    return rough if found is None else found


def ledger_epsilon(wish: Wish, cohort: int, z: float) -> float:
    """Epsilon of a user after T rounds with this noise, by the ledger's own composition."""
    charge = Charge("gaussian", "central", 1.0, z, squared_ratio=z**-2, sampling=cohort / wish.population)
    return compose(Spent({charge: wish.rounds}), wish.delta)[0]


def smallest_cohort(wish: Wish, loss: float) -> int | None:
    """The fewest users a round at which the noise is ``loss`` times the signal at most, to a hundredth; None where the
    whole population is not enough. By Rényi divergences, so it may be a few per cent more than is needed."""

    def found(cohort: float) -> float:
        whole = max(1, min(wish.population, round(cohort)))
        z = quick_noise(wish, whole)
        return math.inf if z is None else wish.loss(whole, z) / loss

    cohort = _root(found, 1.0, float(wish.population), COARSE)
    return None if cohort is None else min(wish.population, math.ceil(cohort))


def smallest_population(wish: Wish, share: float, loss: float) -> int | None:
    """The fewest users N at which a cohort of ``share`` N, in (0, 1], has noise of ``loss`` times the signal at most:
    what noise is needed depends on the share alone, and more users divide it. By Rényi divergences; None where no noise
    is enough."""
    many = replace(wish, population=10**12)
    z = quick_noise(many, max(1, round(share * 10**12)))
    return None if z is None else math.ceil(many.loss(1, z) / (share * loss))


def losses(wish: Wish, cohorts: Sequence[int], times: Sequence[int]) -> dict[int, list[float | None]]:
    """How many times the population -> the loss of signal of each cohort in it; None where there is none."""
    found: dict[int, list[float | None]] = {}
    for each in times:
        larger = replace(wish, population=wish.population * each)
        noise = [quick_noise(larger, cohort) if cohort <= larger.population else None for cohort in cohorts]
        found[each] = [None if z is None else wish.loss(cohort, z) for cohort, z in zip(cohorts, noise, strict=True)]
    return found


def quick_noise(wish: Wish, cohort: int) -> float | None:
    """The noise multiplier that Rényi divergences ask for, which are quick, rounded upwards; None where none is enough.
    More than :func:`needed_noise` by a few per cent."""
    return _quick_noise(wish.population, cohort, wish.rounds, wish.epsilon, wish.delta)


@lru_cache(maxsize=1024)
def _quick_noise(population: int, cohort: int, rounds: int, epsilon: float, delta: float) -> float | None:
    def found(z: float) -> float:
        return rdp_epsilon(Plan(population, cohort, rounds, z, delta))[0] / epsilon

    return _root(found, LEAST_NOISE, MOST_NOISE, CLOSE)


def _root(found: Callable[[float], float], low: float, high: float, close: float) -> float | None:
    """Where what falls is 1, from low to high, to a part ``close`` and no less than that; low where it is below 1
    already, None where it is above 1 at high."""
    if found(low) <= 1:
        return low
    if found(high) > 1:
        return None
    root = brentq(
        lambda place: math.log(min(max(found(math.exp(place)), 1e-9), 1e9)),
        *(math.log(low), math.log(high)),
        xtol=close / 2,
    )
    return float(math.exp(root + close / 2))
