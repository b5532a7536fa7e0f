"""Epsilon of rounds whose deltas get Gaussian noise and whose users are Poisson-sampled: by RDP and PLD, of plans and
of the published tables.

N: population; L: cohort, q = L / N: chance that a user takes part in a round; T: rounds; z: noise multiplier, standard
deviation of the noise in a round's sum over the clipping bound C; alpha: Rényi order, above 1. Logarithms are natural.
The series that accountants use stops converging for small z and orders between whole numbers, where tables are still
printed; the integral here does not.

Pelikan et al. 2023 trains with what it can compute and states epsilon for more users at the same noise of the mean
update over the bound, z / L: as far as the mean goes, training is the same. Its tables (2, 16 and 17) print epsilon to
two digits with the Rényi order it was found at. A row whose figure does not follow from its order is a misprint: of the
order where another order of the paper's grid gives the printed epsilon, of epsilon where none does."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon
from device_sdk.privacy.spending import stated

ORDERS = (1.1, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0)
"""The orders that appear in the paper's tables, and those between them that its best orders leave room for."""

LEAST_NOISE = 1e-4
"""One round of it costs epsilon 50 million: what the integral takes grows with 1 / z, and no smaller z says more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """population N, cohort L, rounds T, noise multiplier z, and delta. PrivacyError: a value outside its domain."""

    population: int
    cohort: int
    rounds: int
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if not 1 <= self.cohort <= self.population:
            raise PrivacyError(f"cohort: found {self.cohort}, expected 1 to the population, {self.population}")
        if self.rounds < 1:
            raise PrivacyError(f"rounds: found {self.rounds}, expected 1 or more")
        if not LEAST_NOISE <= self.noise_multiplier < math.inf:
            raise PrivacyError(f"noise: found {self.noise_multiplier!r}, expected {LEAST_NOISE:g} or more")
        if not 0 < self.delta < 1:
            raise PrivacyError(f"delta: found {self.delta!r}, expected a number between 0 and 1")

    @property
    def sampling(self) -> float:
        """q."""
        return self.cohort / self.population

    def scaled(self, cohort: float, population: float) -> Plan:
        """So many times the cohort and the population, at the same z / L."""
        sizes, noise = (
            (round(self.population * population), round(self.cohort * cohort)),
            self.noise_multiplier * cohort,
        )
        return Plan(*sizes, self.rounds, noise, self.delta)


@dataclass(frozen=True, slots=True)
class PublishedRow(Plan):
    """One row as printed. clip_norm: C; sigma: noise of a value of the mean update, z = sigma L / C; epsilon at delta,
    found at a Rényi order."""

    table: int
    clip_norm: float
    sigma: float
    epsilon: float
    order: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """epsilon: by RDP at the printed order; best, best_order: the smallest over the paper's orders. misprint: None
    where the row is as computed, else which field, what is printed and what it should be."""

    epsilon: float
    best: float
    best_order: float
    misprint: str | None = None


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Every row of tables 2, 16 and 17, in the order of the tables."""
    lines = files("server.privacy").joinpath("pelikan_2023.csv").read_text("utf-8").splitlines()
    return tuple(map(TypeAdapter(PublishedRow).validate_python, csv.DictReader(lines)))


def judge(row: PublishedRow) -> Verdict:
    """A row recomputed by RDP."""
    every = {order: epsilon_at(row, order) for order in (*ORDERS, row.order)}
    found, best = every[row.order], min(ORDERS, key=every.__getitem__)
    misprint = None
    if not _printed_as(found, row.epsilon):
        fitting = [order for order in ORDERS if _printed_as(every[order], row.epsilon)]
        if fitting:
            likely = min(fitting, key=lambda order: abs(every[order] - row.epsilon))
            misprint = f"order: printed {row.order:g}, but epsilon {stated(row.epsilon)} is that of order {likely:g}"
        else:
            misprint = f"epsilon: printed {stated(row.epsilon)}, but order {row.order:g} gives {_two_digits(found)}"
    return Verdict(found, every[best], best, misprint)


@cache
def pld_epsilon(plan: Plan) -> float:
    """Epsilon by composing privacy loss distributions (dp-accounting): the tight figure. Seconds for some plans. The
    loss is discretized to a millionth of epsilon or to 1e-4, whichever is more; rounding is upwards."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    least = min(epsilon_at(plan, order) for order in ORDERS)
    accountant = PLDAccountant(value_discretization_interval=max(1e-4, 1e-6 * least))
    accountant.compose(PoissonSampledDpEvent(plan.sampling, GaussianDpEvent(plan.noise_multiplier)), plan.rounds)
    return float(accountant.get_epsilon(plan.delta))


def _two_digits(epsilon: float) -> str:
    return stated(round(epsilon, 1 - math.floor(math.log10(epsilon))))


def _printed_as(value: float, printed: float) -> bool:
    """Whether a figure of two digits is the value, to the nearest or rounded up."""
    unit = 10.0 ** (math.floor(math.log10(printed)) - 1)
    return any(math.isclose(way(value / unit) * unit, printed, rel_tol=1e-6) for way in (round, math.ceil))


_REACH = 14.0
"""Standard deviations of noise beyond the peaks: what is left out is below e^-98 of them."""
_STEPS = 50
"""Points in a standard deviation. The trapezoid rule is exact to the last digits for a Gaussian with two or more."""


def renyi_divergence(q: float, z: float, alpha: float) -> float:
    """Rényi divergence of order alpha of one round, nats, for 0 < q <= 1, z > 0 and alpha > 1 (Mironov, Talwar and
    Zhang 2019, section 3.3):

        log E_{x ~ N(0, z^2)} [(1 - q + q exp((2 x - 1) / (2 z^2)))^alpha] / (alpha - 1)"""
    if q == 1:
        return alpha / (2 * z * z)
    step = z / _STEPS
    # The integrand has one peak at 0, of those not drawn, and one at alpha, of those drawn every time.
    x = np.arange(-_REACH * z, alpha + _REACH * z, step)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
    exponent = alpha * ratio - np.square(x) / (2 * z * z)
    top = float(exponent.max())
    return (top + math.log(float(np.exp(exponent - top).sum()) * step / (z * math.sqrt(2 * math.pi)))) / (alpha - 1)


def epsilon_at(plan: Plan, alpha: float) -> float:
    """Epsilon of a plan, from the divergence of one order (Canonne, Kamath and Steinke 2020, prop. 12): T R_alpha +
    log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1)"""
    divergence = plan.rounds * renyi_divergence(plan.sampling, plan.noise_multiplier, alpha)
    return max(0.0, divergence + math.log1p(-1 / alpha) - (math.log(plan.delta) + math.log(alpha)) / (alpha - 1))


EVERY_ORDER = tuple(sorted({*ORDERS, 1.05, 1.2, 1.4, 1.7, 3.5, 12.0, 30.0, 40.0, 50.0, 64.0, 100.0, 128.0, 256.0}))
"""Orders to take the best of: Pelikan et al. 2023's, those between, and the higher ones that small epsilons need."""


def rdp_epsilon(plan: Plan) -> tuple[float, float]:
    """(epsilon, the Rényi order that it is found at): the smallest over ``EVERY_ORDER``."""
    return min((epsilon_at(plan, order), order) for order in EVERY_ORDER)


def amplified(plan: Plan, *, pld: bool = True) -> dict[str, Any]:
    """Epsilon of a user by both accountants, under Poisson sampling; every user is charged every round. pld: takes
    seconds to a minute; where epsilon is far above 1,000 and would need minutes, only RDP is stated."""
    epsilon, order = rdp_epsilon(plan)
    return {"rdp": epsilon, "order": order, "pld": min(epsilon, pld_epsilon(plan)) if pld and epsilon < 1000 else None}


def extrapolated(plan: Plan, scales: Sequence[float], populations: Sequence[float]) -> list[Plan]:
    """Pelikan et al. 2023's rows: the plan itself, larger cohorts of populations as much larger, then the largest
    cohort of still larger populations."""
    found = [plan, *(plan.scaled(scale, scale) for scale in scales)]
    largest = max((1.0, *scales))
    return [*found, *(plan.scaled(largest, largest * more) for more in populations)]


def needed_scale(plan: Plan, epsilon: float) -> float | None:
    """How many times the cohort and the population must be larger for RDP to state ``epsilon`` at most, to 1 %; None
    where a million times is not enough. PrivacyError: epsilon that is not above 0."""
    if not epsilon > 0:
        raise PrivacyError(f"epsilon: found {epsilon!r}, expected a number above 0")

    def enough(scale: float) -> bool:
        return rdp_epsilon(plan.scaled(scale, scale))[0] <= epsilon

    if enough(1.0):
        return 1.0
    low, high = 1.0, 2.0
    while not enough(high):
        low, high = high, 2 * high
        if high > 1e6:
            return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def unamplified(plan: Plan, participations: int) -> float:
    """Epsilon of a user who takes part so often, whoever knows when: no sampling is assumed."""
    return gaussian_epsilon(math.sqrt(participations) / plan.noise_multiplier, plan.delta)
