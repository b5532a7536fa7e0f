"""The guard: whether what was learned serves worse than what it was learned from, and what to fall back on.

Three comparisons of costs in [0, 1], each between two models on the same utterance, none of which had a step on it yet:

- served: the local model, as it served, against the published one, by the user's feedback. Predict, then learn.
- drift: the same, by the word errors that the published model itself expects. Feedback that is wrong, by malice or by a
  fault of the app, moves the local model away from all that the published one thinks likely, however consistent it is.
  So does learning, but what it leaves the published model for is better: part of that gain, by feedback, is credited.
- withheld: the local model against itself as it was last checked, on utterances that are never learned from, by either.

A difference of costs bets against "no worse than tolerated": capital starts at 1, and where the mean difference is at
most the tolerance its expectation never grows, so capital of 1/a has a probability of at most a (Ville's inequality).
The first two run on for ever and never fall below 1: then a false alarm comes once in 1/a utterances at most, on the
average (an e-detector of the CUSUM kind: Shin, Ramdas and Rinaldo 2023). None of it is in the papers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from device_sdk.errors import ConfigurationError, StateError
from device_sdk.feedback.distance import word_error_rate
from device_sdk.learning.candidates import Heard
from device_sdk.learning.divergence import DivergenceSettings
from device_sdk.learning.memory import Example
from device_sdk.learning.objectives import posterior

__all__ = [
    "Comparison",
    "GuardSettings",
    "Watch",
    "capital",
    "compared",
    "from_bytes",
    "harm",
    "harm_withheld",
    "to_bytes",
    "watched",
]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """watch: False turns the guard off. withhold: one utterance of so many is never learned from; 0 withholds none.
    capacity: withheld at a time, at most. interval: utterances learned from between two checks of what is withheld.

    tolerance: rise of the mean cost by feedback that is let pass; drift: the same by what the published model expects,
    which a model that learns its user does leave; credit: share of the gain by feedback that is set off against it.
    bet: share of the capital that goes on each utterance. doubt: one false alarm in 1 / doubt utterances, at most;
    withheld_doubt: in 1 / withheld_doubt checks. divergence: of labels that the device makes for itself, see
    :mod:`device_sdk.learning.divergence`.
    """

    watch: bool = True
    withhold: int = 10
    capacity: int = 12
    interval: int = 8
    tolerance: float = 0.05
    drift: float = 0.2
    credit: float = 0.3
    bet: float = 0.75
    doubt: float = 0.01
    withheld_doubt: float = 0.1
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)

    def __post_init__(self) -> None:
        for name, least in (("withhold", 0), ("capacity", 1), ("interval", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected at least {least}")
        for name in ("tolerance", "drift", "credit"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected a number in [0, 1]")
        for name in ("bet", "doubt", "withheld_doubt"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected a number in (0, 1)")
        if self.bet * (1.0 + max(self.tolerance, self.drift)) >= 1.0:  # nobody may lose more than there is
            raise ConfigurationError(f"guard.bet: found {self.bet}, expected less than 1 / (1 + tolerance or drift)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost of one model less that of another on one utterance, in [-1, 1]. feedback: by the user's; published: by
    what the published model expects. None where there is no such standard."""

    feedback: float | None = None
    published: float | None = None

    def drift(self, credit: float) -> float | None:
        """How far the one has left what the published model expects, beyond the credit that feedback gives for it."""
        if self.published is None:
            return None
        return max(-1.0, min(1.0, self.published + credit * (self.feedback or 0.0)))


@dataclass(frozen=True, slots=True)
class Watch:
    """What the guard remembers from run to run, none of it content. served, drift: capital of the bets that the local
    model is worse than the published one. rollbacks: how often what was learned was taken back; why: the last reason.
    """

    served: float = 1.0
    drift: float = 1.0
    rollbacks: int = 0
    why: str | None = None


def compared(
    example: Example,
    local: Heard,
    other: Heard,
    base: Heard,
    costs: Callable[[Example, Sequence[str]], Sequence[float] | None],
) -> Comparison:
    """Expected cost over the n-best (paper 001, eq. 1) of ``local`` less that of ``other``, by both standards.

    base: what the published model hears; by it a text costs the word error that the published model expects of it.
    costs: of texts [N] by the example's feedback, in [0, 1]; None where it says nothing of what was right.
    """
    if not (local.texts and other.texts and base.texts):
        return Comparison()
    believed = posterior(base.scores)

    def expected(heard: Heard, prices: Sequence[float]) -> float:
        return float(posterior(heard.scores) @ np.minimum(prices, 1.0))

    def by_base(heard: Heard) -> float:
        errors = [[word_error_rate(truth, text) for truth in base.texts] for text in heard.texts]
        return expected(heard, (np.minimum(errors, 1.0) @ believed).tolist())

    prices = costs(example, local.texts), costs(example, other.texts)
    feedback = None
    if prices[0] is not None and prices[1] is not None:
        feedback = expected(local, prices[0]) - expected(other, prices[1])
    return Comparison(feedback, by_base(local) - by_base(other))


def capital(differences: Sequence[float], tolerance: float, bet: float) -> float:
    """What a bet against "the mean difference is at most ``tolerance``" has made of 1."""
    return math.prod(1.0 + bet * (difference - tolerance) for difference in differences)


def watched(watch: Watch, seen: Comparison, settings: GuardSettings) -> Watch:
    """After one more utterance, which the local model has served and not learned from."""
    served, drift = watch.served, watch.drift
    if seen.feedback is not None:
        served = max(1.0, served) * capital([seen.feedback], settings.tolerance, settings.bet)
    if (left := seen.drift(settings.credit)) is not None:
        drift = max(1.0, drift) * capital([left], settings.drift, settings.bet)
    return replace(watch, served=min(served, 1e12), drift=min(drift, 1e12))


def harm(watch: Watch, settings: GuardSettings) -> str | None:
    """Why the local model must go, None while there is no reason."""
    if watch.served >= 1.0 / settings.doubt:
        return "by the feedback, it serves worse than the published model"
    if watch.drift >= 1.0 / settings.doubt:
        return "it has left what the published model thinks likely"
    return None


def harm_withheld(seen: Sequence[Comparison], settings: GuardSettings) -> str | None:
    """Why the steps since the last check must go, by what was never learned from."""
    for name, tolerance, differences in (
        ("feedback", settings.tolerance, [each.feedback for each in seen if each.feedback is not None]),
        (
            "published model",
            settings.drift,
            [left for each in seen if (left := each.drift(settings.credit)) is not None],
        ),
    ):
        # Two bets share the doubt.
        if capital(differences, tolerance, settings.bet) >= 2.0 / settings.withheld_doubt:
            return f"{len(differences)} withheld utterances are served worse than before, by the {name}"
    return None


def to_bytes(watch: Watch) -> bytes:
    """JSON, for the store."""
    content = {"served": watch.served, "drift": watch.drift, "rollbacks": watch.rollbacks, "why": watch.why}
    return json.dumps(content).encode()


def from_bytes(content: bytes | None) -> Watch:
    """What was stored; a fresh one where nothing was. StateError: unreadable."""
    if content is None:
        return Watch()
    try:
        found = json.loads(content)
        watch = Watch(float(found["served"]), float(found["drift"]), int(found["rollbacks"]), found["why"])
        finite = math.isfinite(watch.served) and math.isfinite(watch.drift)
        if not finite or min(watch.served, watch.drift, watch.rollbacks) < 0:
            raise ValueError("found a capital or count that is negative or not finite")
        return watch
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateError(
            f"settings/guard: found an unreadable record ({error}); delete the state folder to start afresh"
        ) from error
