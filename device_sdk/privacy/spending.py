"""What a device's own reports cost its user, added up without an accountant's library, never too little.

A mechanism's Renyi divergences R(a), at a fixed grid of orders a, bound what it tells, and add up over any number of
reports, chosen one after the other (Mironov, 2017). One report of counts with Laplace noise moves at most ``max_words``
counts, each by a draw that is private by e = epsilon / max_words, of which R(a) <= min(a e^2 / 2, e) (Bun and Steinke,
2016); Gaussian noise, discrete too, has R(a) = a r^2 / 2 at a ratio r of sensitivity to noise. The sum at every order
gives an epsilon (Canonne, Kamath and Steinke, 2020, proposition 12), and the smallest counts. Epsilons that hold by
themselves are added up beside it, and the smaller of both counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from device_sdk.privacy.gaussian import gaussian_ratio
from device_sdk.privacy.quantised import squared_ratio
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan

Plan = MarginalPlan | DeltaPlan | WordPlan

ORDERS = (
    *(1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
    *(13.0, 16.0, 20.0, 26.0, 32.0, 48.0, 64.0, 128.0, 256.0, 1024.0),
)
"""Never changed: what was spent is kept at these."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of reports, added up. simple, delta: epsilons and deltas; renyi: by order. inf: no such bound."""

    simple: float = 0.0
    delta: float = 0.0
    renyi: tuple[float, ...] = (0.0,) * len(ORDERS)

    def plus(self, other: Spent) -> Spent:
        renyi = tuple(one + two for one, two in zip(self.renyi, other.renyi, strict=True))
        return Spent(self.simple + other.simple, self.delta + other.delta, renyi)

    def without(self, other: Spent) -> Spent:
        """Without a cost that was added before; what has no bound keeps none."""
        renyi = tuple(_less(one, two) for one, two in zip(self.renyi, other.renyi, strict=True))
        return Spent(_less(self.simple, other.simple), _less(self.delta, other.delta), renyi)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """ValueError, KeyError, TypeError: these are none."""
        found = cls(float(fields["simple"]), float(fields["delta"]), tuple(float(each) for each in fields["renyi"]))
        numbers = (found.simple, found.delta, *found.renyi)
        if len(numbers) != 2 + len(ORDERS) or not all(each >= 0 for each in numbers):  # false for what is no number
            raise ValueError(f"expected numbers of at least 0, one for each of {len(ORDERS)} orders")
        return found


def stream_of(plan: Plan) -> Literal["marginals", "deltas", "words"]:
    if isinstance(plan, MarginalPlan):
        return "marginals"
    return "deltas" if isinstance(plan, DeltaPlan) else "words"


def cost_of(plan: Plan, cohort: int = 1) -> Spent:
    """Of one report by this plan: of counts with the noise that it promises, of one report more or less; of a change of
    the weights for whoever sees the sum of ``cohort`` of them, each with its noise, or of as many as secure aggregation
    leaves at least; of words by what it says."""
    if isinstance(plan, WordPlan):
        return Spent(plan.epsilon, plan.delta, (math.inf,) * len(ORDERS))
    if isinstance(plan, DeltaPlan):
        if plan.noise_stddev <= 0 or plan.measure != "none":
            return _NO_BOUND
        if plan.trust == "distributed":
            return _gaussian(math.sqrt(squared_ratio(plan)))
        return _gaussian(plan.clip_norm / (plan.noise_stddev * math.sqrt(cohort)))
    if plan.mode != "bounded":
        return _NO_BOUND
    if plan.mechanism == "discrete_gaussian":
        return _gaussian(gaussian_ratio(plan.epsilon, plan.delta))
    each = plan.epsilon / plan.max_words
    return Spent(plan.epsilon, 0.0, tuple(plan.max_words * min(order * each**2 / 2, each) for order in ORDERS))


def epsilon_of(spent: Spent, delta: float) -> float:
    """The epsilon at ``delta`` of everything that was spent; math.inf where nothing bounds it."""
    if spent == Spent():
        return 0.0
    simple = spent.simple if spent.delta <= delta else math.inf
    converted = (
        renyi + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, renyi in zip(ORDERS, spent.renyi, strict=True)
    )
    return max(0.0, min(simple, *converted))


LARGEST_STATED = 100.0
"""Above it an epsilon bounds nothing that anybody would call privacy."""


def stated(epsilon: float | str) -> str:
    """As people are told: ``none`` where nothing is bounded, or as good as nothing."""
    value = float(epsilon)
    if value <= LARGEST_STATED:
        return f"{value:.4g}"
    return f"none ({'infinite' if math.isinf(value) else f'{value:.2g}'})"


_NO_BOUND = Spent(math.inf, 0.0, (math.inf,) * len(ORDERS))


def _less(whole: float, part: float) -> float:
    return whole if math.isinf(whole) else max(0.0, whole - part)


def _gaussian(ratio: float) -> Spent:
    return Spent(math.inf, 0.0, tuple(order * ratio**2 / 2 for order in ORDERS))
