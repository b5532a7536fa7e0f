"""Epsilon of many charges together, by privacy loss distributions.

A user's report moves up to k coordinates by w each, under independent draws: the composition of k mechanisms with
sensitivity w dominates it, since noise whose density is log-concave tells more of a larger shift. So ten reports are
10 k of those, and dp-accounting composes them, however many there are: bins of privacy loss grow wider with the range
that they cover, so thousands of rounds take the time and the memory of hundreds. Wider bins begin where narrower ones
do, so what is stated is never below the truth and never shrinks with a round more. It is compared with two bounds that
just add up, pure epsilons and zero-concentrated divergences; all of them hold, so the smallest is stated. Anything that
cannot be computed counts as infinite. What a distributed discrete Gaussian hides has no such distribution, as it may
point anywhere: where one is among the charges the sums are what is stated.

P0, P1: outputs without and with a user's report; q: the probability that the user is asked (Poisson sampling). Whoever
cannot tell who was asked sees the mixture M = (1 - q) P0 + q P1. For a threshold a = e^epsilon, the hockey-stick
divergence H_a(P || P') = sum max(0, p - a p') of the mixture follows from that of the mechanism, exactly:

    H_a(M || P0) = q H_b(P1 || P0),                b = 1 + (a - 1) / q             where b > 0, else 1 - a
    H_a(P0 || M) = (1 - a (1 - q)) H_c(P0 || P1),  c = a q / (1 - a (1 - q))       where a (1 - q) < 1, else 0

All words of a report come or stay away together, so it is the whole report's loss that is sampled, not each word's.
Where a user's reports are replaced by any others, both mixtures share (1 - q) P0, and for a >= 1 (advanced joint
convexity: Balle, Barthe and Gaboardi, Privacy Amplification by Subsampling, 2018) H_a <= q H_b of the pair of reports;
the other way round it is the same, so H_a = 1 - a + a H_(1/a) gives it for a < 1."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_sdk.privacy.gaussian import gaussian_epsilon
from server.privacy.charges import DISTRIBUTED, Charge

P = ParamSpec("P")
T = TypeVar("T")
Lines = tuple[tuple[Charge, int], ...]

INTERVAL = 1e-3
"""Width of the narrowest bins of privacy loss; joined by straight lines, which leaves an error of its square."""

LARGEST_LOSS = 500.0
"""Nats that bins of that width cover. For twice as many they are twice as wide. Noise of which one draw may lose more
protects nothing: it is stated by sums, sampled or not."""

_AROUND = np.geomspace(0.1, 2.0, 300)

ATTEMPTS = 100
"""Of work that is stopped for what it must know, before it computes that itself."""

_MECHANISMS = frozenset({"discrete_laplace", "discrete_gaussian", "gaussian", DISTRIBUTED})


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
    """(epsilon, delta) of everything spent; the delta is 0 where the epsilon needs none. Distributions may take
    seconds, the first time that somebody asks for these charges: see :func:`run_unhurried`."""
    lines = tuple(sorted(total.charges.items()))
    found = _closed(lines, delta)
    if not found.distributions:
        return found.epsilon, found.delta
    return _KNOWN.get(lines, delta, found)


def run_unhurried(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns, for work that composes while others wait for it: for a transaction that writes, say. What
    is not known yet is not computed in there: the work is stopped, which takes its transaction back, and begun anew
    once it is known. So it must be one transaction, or several that go on where the last one ended."""
    for _ in range(ATTEMPTS):
        before = _HURRIED.set(True)
        try:
            return work(*args, **kwargs)
        except _Unknown as stopped:
            lines, delta = stopped.lines, stopped.delta
        finally:
            _HURRIED.reset(before)
        _KNOWN.get(lines, delta, _closed(lines, delta))
    return work(*args, **kwargs)


class _Unknown(BaseException):
    """Stops work that must not wait for a composition. No error: nobody but :func:`run_unhurried` shall catch it."""

    def __init__(self, lines: Lines, delta: float) -> None:
        self.lines, self.delta = lines, delta


class _Compositions:
    """Owns the latest compositions that took distributions, by what was composed. One is computed at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: dict[tuple[Lines, float], tuple[float, float]] = {}
        self._computing = threading.Lock()

    def get(self, lines: Lines, delta: float, closed: _Closed) -> tuple[float, float]:
        if (found := self._found.get((lines, delta))) is not None:
            return found
        if _HURRIED.get():
            raise _Unknown(lines, delta)
        with self._computing:
            if (found := self._found.get((lines, delta))) is None:
                found = _composed(lines, delta, closed)
                while len(self._found) >= self._size:
                    del self._found[next(iter(self._found))]
                self._found[lines, delta] = found
        return found


def quick_bound(total: Spent, delta: float) -> float:
    """An epsilon at ``delta`` that holds and takes no time: pure epsilons and zero-concentrated divergences added."""
    return _sums(tuple(total.charges.items()), delta)[0]


def exchange(charges: Iterable[Charge]) -> list[Charge]:
    """The charges for a neighbour whose reports are any others, instead of absent: one utterance more or less may take
    the place of every word in a report, so up to twice the coordinates move; a clipped delta moves twice as far."""
    return [
        replace(charge, sensitivity=2 * charge.sensitivity, squared_ratio=4 * charge.squared_ratio, replaced=True)
        if charge.mechanism in ("gaussian", DISTRIBUTED)
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


@dataclass(frozen=True, slots=True)
class _Closed:
    """What is known without distributions, which may know better where ``distributions``; reach: nats that their bins
    must cover; spare: the delta that is left for them."""

    epsilon: float
    delta: float
    distributions: bool = False
    reach: float = 0.0
    spare: float = 0.0


@lru_cache(maxsize=4096)
def _closed(lines: Lines, delta: float) -> _Closed:
    best, used = _sums(lines, delta)
    stated = _Closed(best, used)
    if best == 0 or math.isinf(best) or any(charge.mechanism == DISTRIBUTED for charge, _ in lines):
        return stated
    spare = delta - sum(charge.delta * times for charge, times in lines)
    sampled = any(charge.sampling < 1 for charge, _ in lines)
    if not sampled and {charge.mechanism for charge, _ in lines} == {"gaussian"}:  # known in closed form
        exact = gaussian_epsilon(math.sqrt(sum(charge.squared_ratio * times for charge, times in lines)), spare)
        return _Closed(exact, delta) if exact < best else stated
    alone = [_sums(((charge, 1),), delta)[0] for charge, _ in lines]
    if not spare > 0 or any(
        loss / _draws(charge) > LARGEST_LOSS for (charge, _), loss in zip(lines, alone, strict=True)
    ):
        return stated
    # Of sampled rounds there may be thousands; a user's report is in a share of them.
    reach = sum(
        loss * (times if charge.sampling == 1 else max(1.0, charge.sampling * times))
        for (charge, times), loss in zip(lines, alone, strict=True)
    )
    return _Closed(best, used, True, reach, spare) if math.isfinite(reach) else stated


def _composed(lines: Lines, delta: float, closed: _Closed) -> tuple[float, float]:
    interval = INTERVAL * 2 ** max(0, math.ceil(math.log2(closed.reach / LARGEST_LOSS)))
    whole = None
    for charge, times in lines:
        own = _loss(replace(charge, trust="", delta=0.0), interval).self_compose(times * _draws(charge))
        whole = own if whole is None else whole.compose(own)
    assert whole is not None
    found = float(whole.get_epsilon_for_delta(closed.spare))
    return (found, delta) if found < closed.epsilon else (closed.epsilon, closed.delta)


_KNOWN = _Compositions(4096)
_HURRIED: ContextVar[bool] = ContextVar("hurried", default=False)


def _sums(lines: Lines, delta: float) -> tuple[float, float]:
    """(epsilon, delta used) without any distribution. A line that makes no sense is the worst line."""
    epsilon, squared, failure = (
        sum(getattr(charge, name) * times for charge, times in lines) for name in ("epsilon", "squared_ratio", "delta")
    )
    spare = delta - failure
    senseless = any(charge.unbounded or not _sensible(charge) for charge, _ in lines) or not math.isfinite(squared)
    if senseless or (not spare > 0 and (failure or squared)):
        return math.inf, 0.0
    added = epsilon + _concentrated(squared / 2, spare)  # discrete or not, a Gaussian mechanism is rho-zCDP
    if epsilon and spare > 0:
        # So is a pure one, with rho = epsilon^2 / 2 (Bun and Steinke 2016, proposition 1.4), each of its coordinates.
        pure = sum(times * charge.epsilon**2 / charge.coordinates for charge, times in lines) / 2
        averaged = _concentrated(squared / 2 + pure, spare)
        if averaged < added:
            return averaged, delta
    return added, delta if squared or failure else 0.0


def _concentrated(rho: float, delta: float) -> float:
    """Epsilon at delta of what is rho-zCDP: its Renyi divergence of order a is at most rho a, which gives an epsilon at
    every a > 1 (Canonne, Kamath and Steinke, 2020, proposition 12); the smallest of those around 1 + sqrt(log(1/delta)
    / rho), where a simpler formula has its smallest."""
    if not rho:
        return 0.0
    orders = 1 + math.sqrt(math.log(1 / delta) / rho) * _AROUND
    found = rho * orders + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(found.min()))


def _sensible(charge: Charge) -> bool:
    values = (charge.sensitivity, charge.scale, charge.epsilon, charge.squared_ratio, charge.delta)
    return (
        charge.mechanism in _MECHANISMS
        and all(math.isfinite(value) and value >= 0 for value in values)
        and charge.coordinates >= 1
        and 0 < charge.sampling <= 1
    )


@lru_cache(maxsize=64)
def _loss(charge: Charge, interval: float) -> Any:
    """Privacy loss distribution of one draw of a mechanism; of a whole report, where that is sampled."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    if charge.sampling < 1:
        full = replace(charge, sampling=1.0, replaced=False)
        whole = _loss(full, interval).self_compose(_draws(full))
        return _subsampled(whole, charge.sampling, _reach(charge, interval), interval, charge.replaced)
    build, sensitivity, scale = getattr(pld, f"from_{charge.mechanism}_mechanism"), charge.sensitivity, charge.scale
    if charge.mechanism == "discrete_laplace":
        scale = 1 / scale
    if charge.mechanism != "gaussian":
        sensitivity = int(sensitivity)
    return build(scale, sensitivity, value_discretization_interval=interval, use_connect_dots=True)


def _draws(charge: Charge) -> int:
    """Of the distribution that :func:`_loss` makes, in one report."""
    return charge.coordinates if charge.sampling == 1 else 1


def _reach(charge: Charge, interval: float) -> float:
    """The privacy loss of one release beyond which nothing is left that counts."""
    ratio = math.sqrt(charge.squared_ratio)
    return charge.epsilon + charge.squared_ratio / 2 + 12 * ratio + interval


Array = NDArray[np.float64]


def _subsampled(whole: Any, q: float, reach: float, interval: float, replaced: bool) -> Any:
    """The privacy loss distribution (dp-accounting's) of a mechanism under Poisson sampling. whole: the mechanism's
    own, the same in both directions, as additive symmetric noise has it. q: in (0, 1). reach: a loss, nats, beyond
    which its mass is as good as none. interval: width of the bins, which are joined by straight lines: the result is
    never below the truth. replaced: for reports that are exchanged, ``whole`` being of that pair."""
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
        return PrivacyLossDistribution(pmf(np.where(epsilons >= 0, removed, mirrored)))
    return PrivacyLossDistribution(pmf(removed), pmf(_added(whole, q, epsilons)))


def _removed(whole: Any, q: float, epsilons: Array) -> Array:
    """H_a(M || P0) at a = e^epsilon [n]."""
    ratio = np.expm1(epsilons) / q
    inside = ratio > -1
    return np.where(inside, q * _curve(whole, np.log1p(np.where(inside, ratio, 0.0))), -np.expm1(epsilons))


def _added(whole: Any, q: float, epsilons: Array) -> Array:
    """H_a(P0 || M) at a = e^epsilon [n]."""
    rest = 1 - np.exp(epsilons) * (1 - q)
    inside = rest > 0
    return np.where(inside, rest * _curve(whole, epsilons + np.log(q) - np.log(np.where(inside, rest, 1.0))), 0.0)


def _curve(whole: Any, epsilons: Array) -> Array:
    """H_(e^epsilon) of the mechanism [n]; dp-accounting wants them in ascending order."""
    order = np.argsort(epsilons, kind="stable")
    found = np.empty_like(epsilons)
    found[order] = whole.get_delta_for_epsilon(epsilons[order].tolist())
    return found
