"""What a federation would cost its users, before it runs: epsilon of sampled Gaussian rounds, and of larger ones.

N: population; L: cohort, q = L / N; T: rounds; z: noise multiplier, standard deviation of the noise in a round's sum
over the clipping bound. Pelikan et al. 2023 trains with what it can compute and states epsilon for more users at the
same noise of the mean update over the bound, z / L: as far as the mean goes, training is the same, and z grows with the
cohort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon
from server.privacy.published import ORDERS, pld_epsilon
from server.privacy.renyi import epsilon_at

__all__ = ["EVERY_ORDER", "Plan", "amplified", "extrapolated", "needed_scale", "rdp_epsilon", "unamplified"]

EVERY_ORDER = tuple(sorted({*ORDERS, 1.05, 1.2, 1.4, 1.7, 3.5, 12.0, 30.0, 40.0, 50.0, 64.0, 100.0, 128.0, 256.0}))
"""Orders to take the best of: Pelikan et al. 2023's, those between, and the higher ones that small epsilons need."""


@dataclass(frozen=True, slots=True)
class Plan:
    """population N, cohort L, rounds T, noise multiplier z, and delta. PrivacyError: a value outside its domain."""

    population: int
    cohort: int
    rounds: int
    noise_multiplier: float
    delta: float = 1e-9

    def __post_init__(self) -> None:
        if not 1 <= self.cohort <= self.population:
            raise PrivacyError(f"cohort: found {self.cohort}, expected 1 to the population, {self.population}")
        if self.rounds < 1:
            raise PrivacyError(f"rounds: found {self.rounds}, expected 1 or more")
        if not 0 < self.noise_multiplier < math.inf:
            raise PrivacyError(f"noise: found {self.noise_multiplier!r}, expected a number above 0")
        if not 0 < self.delta < 1:
            raise PrivacyError(f"delta: found {self.delta!r}, expected a number between 0 and 1")

    @property
    def sampling(self) -> float:
        """q."""
        return self.cohort / self.population

    def scaled(self, cohort: float, population: float) -> Plan:
        """So many times the cohort and the population, at the same z / L."""
        return Plan(
            round(self.population * population),
            round(self.cohort * cohort),
            self.rounds,
            self.noise_multiplier * cohort,
            self.delta,
        )


def rdp_epsilon(q: float, z: float, rounds: int, delta: float) -> tuple[float, float]:
    """(epsilon, the Rényi order that it is found at): the smallest over ``EVERY_ORDER``."""
    return min((epsilon_at(q, z, rounds, delta, order), order) for order in EVERY_ORDER)


def amplified(q: float, z: float, rounds: int, delta: float, *, pld: bool = True) -> dict[str, Any]:
    """Epsilon of a user by both accountants, under Poisson sampling with chance q; every user is charged every round.

    pld: takes seconds to a minute. Where distributions are as wide as to need minutes (epsilon far above 1,000,
    nothing is protected), only RDP is stated.
    """
    epsilon, order = rdp_epsilon(q, z, rounds, delta)
    found: dict[str, Any] = {"rdp": epsilon, "order": order, "pld": None}
    if pld and epsilon < 1000:
        found["pld"] = min(epsilon, pld_epsilon(q, z, rounds, delta))
    return found


def extrapolated(plan: Plan, scales: Sequence[float], populations: Sequence[float]) -> list[Plan]:
    """Pelikan et al. 2023's rows: the plan itself, larger cohorts of populations as much larger, then the largest
    cohort of still larger populations."""
    found = [plan, *(plan.scaled(scale, scale) for scale in scales)]
    largest = max((1.0, *scales))
    return [*found, *(plan.scaled(largest, largest * more) for more in populations)]


def needed_scale(plan: Plan, epsilon: float, most: float = 1e6) -> float | None:
    """How many times the cohort and the population must be larger for RDP to state ``epsilon`` at most, to 1 %; None
    where ``most`` times is not enough. PrivacyError: epsilon that is not above 0."""
    if not epsilon > 0:
        raise PrivacyError(f"epsilon: found {epsilon!r}, expected a number above 0")

    def enough(scale: float) -> bool:
        larger = plan.scaled(scale, scale)
        return rdp_epsilon(larger.sampling, larger.noise_multiplier, larger.rounds, larger.delta)[0] <= epsilon

    if enough(1.0):
        return 1.0
    low, high = 1.0, 2.0
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def unamplified(plan: Plan, participations: int) -> float:
    """Epsilon of a user who takes part so often, whoever knows when: no sampling is assumed."""
    return gaussian_epsilon(math.sqrt(participations) / plan.noise_multiplier, plan.delta)
