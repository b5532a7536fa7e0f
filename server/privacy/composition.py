"""Epsilon of many charges together, by privacy loss distributions.

A user's report moves up to k coordinates by w each, under independent draws: the composition of k mechanisms with
sensitivity w dominates it, since noise whose density is log-concave tells more of a larger shift. So one report is k of
those, ten reports are 10 k, and dp-accounting composes them. What it says is compared with two bounds that just add up,
pure epsilons and zero-concentrated divergences; all of them hold, so the smallest is stated. Anything that cannot be
computed counts as infinite. A charge of a round with Poisson-sampled users is amplified:
:mod:`server.privacy.subsampling`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from device_sdk.privacy.gaussian import gaussian_epsilon
from server.privacy.charges import Charge

__all__ = ["Spent", "compose", "exchanged", "quick_bound"]

INTERVAL = 1e-3
"""Width of the bins of privacy loss; joined by straight lines, which leaves an error of its square."""

LARGEST_LOSS = 500.0
"""Beyond this the sums are stated as they are: nothing is protected, and bins would fill the memory."""

_MECHANISMS = frozenset({"discrete_laplace", "discrete_gaussian", "gaussian"})


@dataclass(frozen=True, slots=True)
class Spent:
    """Charges and how often each was made."""

    charges: Mapping[Charge, int] = field(default_factory=dict)

    def plus(self, charge: Charge) -> Spent:
        return Spent(Counter(self.charges) + Counter([charge]))

    @property
    def rounds(self) -> int:
        return sum(self.charges.values())

    @property
    def count_epsilon(self) -> float | None:
        """Of one count that is in every release of mode ``paper``, None without such releases."""
        losses = [charge.count_epsilon * times for charge, times in self.charges.items() if charge.count_epsilon]
        return sum(losses) if losses else None


def compose(total: Spent, delta: float) -> tuple[float, float]:
    """(epsilon, delta) of everything spent; the delta is 0 where the epsilon needs none."""
    return _composed(tuple(sorted(total.charges.items())), delta)


def quick_bound(total: Spent, delta: float) -> float:
    """An epsilon at ``delta`` that holds and takes no time: pure epsilons and zero-concentrated divergences added."""
    return _sums(tuple(total.charges.items()), delta)[0]


def exchanged(charges: Iterable[Charge]) -> list[Charge]:
    """The charges for a neighbour whose reports are any others, instead of absent: one utterance more or less may take
    the place of every word in a report, so up to twice the coordinates move; a clipped delta moves twice as far."""
    return [
        replace(charge, sensitivity=2 * charge.sensitivity, squared_ratio=4 * charge.squared_ratio, replaced=True)
        if charge.mechanism == "gaussian"
        else replace(
            charge,
            replaced=True,
            coordinates=2 * charge.coordinates,
            epsilon=2 * charge.epsilon,
            squared_ratio=2 * charge.squared_ratio,
            delta=charge.delta * (1 + math.exp(min(charge.epsilon, LARGEST_LOSS))),
        )
        for charge in charges
    ]


@lru_cache(maxsize=4096)
def _composed(lines: tuple[tuple[Charge, int], ...], delta: float) -> tuple[float, float]:
    best, used = _sums(lines, delta)
    if best == 0 or math.isinf(best):
        return best, used
    spare = delta - sum(charge.delta * times for charge, times in lines)
    sampled = any(charge.sampling < 1 for charge, _ in lines)
    if not sampled and {charge.mechanism for charge, _ in lines} == {"gaussian"}:  # known in closed form
        exact = gaussian_epsilon(math.sqrt(sum(charge.squared_ratio * times for charge, times in lines)), spare)
        return (exact, delta) if exact < best else (best, used)
    # Of sampled rounds there may be thousands, each of which costs little; alone, it must fit.
    alone = max(_sums(((charge, 1),), delta)[0] if charge.sampling < 1 else best for charge, _ in lines)
    if alone > LARGEST_LOSS or (sampled and not spare > 0):
        return best, used
    losses = [_losses(replace(charge, trust="", delta=0.0), times) for charge, times in lines]
    whole = losses[0]
    for other in losses[1:]:
        whole = whole.compose(other)
    found = float(whole.get_epsilon_for_delta(spare))
    return (found, delta) if found < best else (best, used)


def _sums(lines: tuple[tuple[Charge, int], ...], delta: float) -> tuple[float, float]:
    """(epsilon, delta used) without any distribution. A line that makes no sense is the worst line."""
    epsilon, squared, failure = (
        sum(getattr(charge, name) * times for charge, times in lines) for name in ("epsilon", "squared_ratio", "delta")
    )
    if any(charge.unbounded or not _sensible(charge) for charge, _ in lines):
        return math.inf, 0.0
    if squared == 0 and failure == 0:
        return epsilon, 0.0
    spare = delta - failure
    if not (spare > 0 and math.isfinite(squared)):
        return math.inf, 0.0
    rho = squared / 2  # discrete or not, a Gaussian mechanism is rho-zCDP
    return epsilon + (rho + 2 * math.sqrt(rho * math.log(1 / spare)) if rho else 0.0), delta


def _sensible(charge: Charge) -> bool:
    values = (charge.sensitivity, charge.scale, charge.epsilon, charge.squared_ratio, charge.delta)
    return (
        charge.mechanism in _MECHANISMS
        and all(math.isfinite(value) and value >= 0 for value in values)
        and charge.coordinates >= 1
        and 0 < charge.sampling <= 1
    )


@lru_cache(maxsize=1024)
def _losses(charge: Charge, times: int) -> Any:
    """Privacy loss distribution of a mechanism run ``times`` times."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    if charge.sampling < 1:
        from server.privacy.subsampling import subsampled

        whole = _losses(replace(charge, sampling=1.0, replaced=False), 1)
        return subsampled(whole, charge.sampling, _reach(charge), INTERVAL, charge.replaced).self_compose(times)
    build, sensitivity, scale = getattr(pld, f"from_{charge.mechanism}_mechanism"), charge.sensitivity, charge.scale
    if charge.mechanism == "discrete_laplace":
        scale = 1 / scale
    if charge.mechanism != "gaussian":
        sensitivity = int(sensitivity)
    one = build(scale, sensitivity, value_discretization_interval=INTERVAL, use_connect_dots=True)
    return one.self_compose(times * charge.coordinates)


def _reach(charge: Charge) -> float:
    """The privacy loss of one release beyond which nothing is left that counts."""
    ratio = math.sqrt(charge.squared_ratio)
    return charge.epsilon + charge.squared_ratio / 2 + 12 * ratio + INTERVAL
