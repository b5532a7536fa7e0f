"""The guard: whether what was learned serves worse than what it was learned from, and what to fall back on.

Three comparisons of costs in [0, 1], each between two models on the same utterance, none of which had a step on it yet:

- served: the local model, as it served, against the published one, by feedback that says what was right. Predict, then
  learn.
- drift: where no feedback does, the local model against the proven one, by the word errors that the proven one expects.
  What its user confirmed is no drift, however far it is from what anybody else says.
- withheld: the local model against itself as it was last checked, on utterances that are never learned from, by either.

The proven model is the last one that served so many confirmed utterances in a row with nothing said against it; until
there is one, the published. It is what drift goes back to, and the first step back where feedback finds harm.

A difference of costs bets against "no worse than tolerated": capital starts at 1, and where the mean difference is at
most the tolerance its expectation never grows, so capital of 1/a has a probability of at most a (Ville's inequality).
The first two run on for ever and never fall below 1: then a false alarm comes once in 1/a utterances at most, on the
average (an e-detector of the CUSUM kind: Shin, Ramdas and Rinaldo 2023). None of it is in the papers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

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
    capacity: withheld at a time, at most. interval: utterances learned from between two checks of what is withheld, and
    confirmed ones in a row that prove a model.

    tolerance: rise of the mean cost by feedback that is let pass; drift: the same by what the proven model expects.
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
    bet: float = 0.75
    doubt: float = 0.01
    withheld_doubt: float = 0.1
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)

    def __post_init__(self) -> None:
        for name, least in (("withhold", 0), ("capacity", 1), ("interval", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected at least {least}")
        for name in ("tolerance", "drift"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected a number in [0, 1]")
        for name in ("bet", "doubt", "withheld_doubt"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigurationError(f"guard.{name}: found {getattr(self, name)}, expected a number in (0, 1)")
        if self.bet * (1.0 + max(self.tolerance, self.drift)) >= 1.0:  # nobody may lose more than there is
            raise ConfigurationError(f"guard.bet: found {self.bet}, expected less than 1 / (1 + tolerance or drift)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost of one model less that of another on one utterance, in [-1, 1]. feedback: by the user's; drift: by what the
    proven model expects, where feedback does not say what was right. None where there is no such standard."""

    feedback: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """What the guard remembers from run to run, none of it content. served, drift: capital of the bets that the local
    model is worse than the published one, and than the proven one. confirmed: utterances in a row of which feedback
    said what was right, and nothing against the model. rollbacks: how often what was learned was taken back; why: the
    last reason.
    """

    served: float = 1.0
    drift: float = 1.0
    confirmed: int = 0
    rollbacks: int = 0
    why: str | None = None


def compared(
    example: Example,
    local: Heard,
    other: Heard,
    proven: Heard,
    costs: Callable[[Example, Sequence[str]], Sequence[float] | None],
) -> Comparison:
    """Expected cost over the n-best (Rao et al. 2023, eq. 1) of ``local`` less that of ``other``.

    costs: of texts [N] by the example's feedback, in [0, 1]; None where it does not say what was right. Then a text
    costs the word error that the ``proven`` model expects of it.
    """
    if not (local.texts and other.texts and proven.texts):
        return Comparison()

    def expected(heard: Heard, prices: Sequence[float]) -> float:
        return float(posterior(heard.scores) @ np.minimum(prices, 1.0))

    prices = costs(example, local.texts), costs(example, other.texts)
    if prices[0] is not None and prices[1] is not None:
        return Comparison(feedback=expected(local, prices[0]) - expected(other, prices[1]))
    believed = posterior(proven.scores)

    def unlikely(heard: Heard) -> float:
        errors = [[word_error_rate(truth, text) for truth in proven.texts] for text in heard.texts]
        return expected(heard, (np.minimum(errors, 1.0) @ believed).tolist())

    return Comparison(drift=unlikely(local) - unlikely(other))


def capital(differences: Sequence[float], tolerance: float, bet: float) -> float:
    """What a bet against "the mean difference is at most ``tolerance``" has made of 1."""
    return math.prod(1.0 + bet * (difference - tolerance) for difference in differences)


def watched(watch: Watch, seen: Comparison, settings: GuardSettings) -> Watch:
    """After one more utterance, which the local model has served and not learned from."""
    served, drift, confirmed = watch.served, watch.drift, watch.confirmed
    if seen.feedback is not None:
        served = max(1.0, served) * capital([seen.feedback], settings.tolerance, settings.bet)
        confirmed = confirmed + 1 if served <= 1.0 else 0
    if seen.drift is not None:
        drift = max(1.0, drift) * capital([seen.drift], settings.drift, settings.bet)
    return replace(watch, served=min(served, 1e12), drift=min(drift, 1e12), confirmed=confirmed)


def harm(watch: Watch, settings: GuardSettings) -> str | None:
    """Why the local model must go, None while there is no reason."""
    if watch.served >= 1.0 / settings.doubt:
        return "by the feedback, it serves worse than the published model"
    if watch.drift >= 1.0 / settings.doubt:
        return "it has left what that model thinks likely, and no feedback says why"
    return None


def harm_withheld(seen: Sequence[Comparison], settings: GuardSettings) -> str | None:
    """Why the steps since the last check must go, by what was never learned from."""
    for name, tolerance, differences in (
        ("feedback", settings.tolerance, [each.feedback for each in seen if each.feedback is not None]),
        ("proven model", settings.drift, [each.drift for each in seen if each.drift is not None]),
    ):
        # Two bets share the doubt.
        if capital(differences, tolerance, settings.bet) >= 2.0 / settings.withheld_doubt:
            return f"{len(differences)} withheld utterances are served worse than before, by the {name}"
    return None


def to_bytes(watch: Watch) -> bytes:
    """JSON, for the store."""
    return json.dumps(asdict(watch)).encode()


def from_bytes(content: bytes | None) -> Watch:
    """What was stored; a fresh one where nothing was. StateError: unreadable."""
    if content is None:
        return Watch()
    try:
        found = json.loads(content)
        watch = Watch(
            float(found["served"]),
            float(found["drift"]),
            int(found.get("confirmed", 0)),
            int(found["rollbacks"]),
            found["why"],
        )
        finite = math.isfinite(watch.served) and math.isfinite(watch.drift)
        if not finite or min(watch.served, watch.drift, watch.confirmed, watch.rollbacks) < 0:
            raise ValueError("found a capital or count that is negative or not finite")
        return watch
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise StateError(
            f"settings/guard: found an unreadable record ({error}); delete the state folder to start afresh"
        ) from error
