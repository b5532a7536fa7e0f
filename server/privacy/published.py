"""Pelikan et al. 2023's privacy tables (2, 16 and 17) recomputed: what is printed, what it should be, and what PLD
gives.

A row of the paper is a Gaussian mechanism with Poisson-sampled users. The paper prints epsilon to two digits with the
Rényi order it was found at. A row whose figure does not follow from its order is a misprint: of the order where another
order of the paper's grid gives the printed epsilon, of epsilon where none does.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from server.privacy.renyi import epsilon_at

__all__ = ["ORDERS", "PublishedRow", "Verdict", "judge", "pld_epsilon", "published_rows"]

ORDERS = (1.1, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0)
"""The orders that appear in the paper's tables, and those between them that its best orders leave room for."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row as printed. clip_norm: C; sigma: noise of a value of the mean update; cohort: L; population: N; rounds:
    T; noise_multiplier: z = sigma L / C; epsilon at delta, found at a Rényi order."""

    table: int
    clip_norm: float
    sigma: float
    cohort: int
    population: int
    rounds: int
    delta: float
    noise_multiplier: float
    epsilon: float
    order: float

    @property
    def sampling(self) -> float:
        """q = L / N."""
        return self.cohort / self.population


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
    text = files("server.privacy").joinpath("pelikan_2023.csv").read_text("utf-8")
    whole = {"table", "cohort", "population", "rounds"}
    rows: list[dict[str, Any]] = [
        {name: int(value) if name in whole else float(value) for name, value in row.items()}
        for row in csv.DictReader(text.splitlines())
    ]
    return tuple(PublishedRow(**row) for row in rows)


def judge(row: PublishedRow, orders: Sequence[float] = ORDERS) -> Verdict:
    """A row recomputed by RDP."""

    def at(order: float) -> float:
        return epsilon_at(row.sampling, row.noise_multiplier, row.rounds, row.delta, order)

    found = at(row.order)
    every = {order: at(order) for order in orders}
    best = min(every, key=every.__getitem__)
    misprint = None
    if not _printed_as(found, row.epsilon):
        fitting = [order for order, value in every.items() if _printed_as(value, row.epsilon)]
        if fitting:
            likely = min(fitting, key=lambda order: abs(every[order] - row.epsilon))
            misprint = f"order: printed {row.order:g}, but epsilon {row.epsilon:.2g} is that of order {likely:g}"
        else:
            misprint = f"epsilon: printed {row.epsilon:.2g}, but order {row.order:g} gives {found:.2g}"
    return Verdict(found, every[best], best, misprint)


@cache
def pld_epsilon(q: float, z: float, rounds: int, delta: float) -> float:
    """Epsilon by composing privacy loss distributions (dp-accounting): the tight figure. Seconds for some rows.

    The loss is discretized to a millionth of epsilon or to 1e-4, whichever is more; rounding is upwards.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    least = min(epsilon_at(q, z, rounds, delta, order) for order in ORDERS)
    accountant = PLDAccountant(value_discretization_interval=max(1e-4, 1e-6 * least))
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds)
    return float(accountant.get_epsilon(delta))


def _printed_as(value: float, printed: float) -> bool:
    """Whether a figure of two digits is the value, to the nearest or rounded up."""
    unit = 10.0 ** (math.floor(math.log10(printed)) - 1)
    return any(math.isclose(way(value / unit) * unit, printed, rel_tol=1e-6) for way in (round, math.ceil))
