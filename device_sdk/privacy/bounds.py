"""What a server may ask of a device at most, by the device's own settings: an offer beyond it is left out.

The bounds of a round's plan are the server's choice, and its noise is the server's promise. These are the app's: they
hold whatever is offered, by whichever server."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from device_sdk.errors import ConfigurationError

if TYPE_CHECKING:  # a device starts without pydantic, and without what only a check-in reckons with
    from collections.abc import Iterator

    from device_sdk.privacy.spending import Plan, Spent


@dataclass(frozen=True, slots=True)
class OfferBounds:
    """The defaults are strict: a report of a stream goes out only where this device, by itself, vouches for it.

    paper: rounds may ask for all counts so far, unbounded (mode ``paper``, for which no epsilon holds). max_words,
    max_weight: of a report of counts. clip_norm: L2 bound of a change of the weights. least_noise: the least standard
    deviation of the noise that this device adds to every value of one, over its clip norm; 0 lets changes without noise
    go. measures: rounds may ask for the training loss or the word error besides, which nobody noises.
    marginals_epsilon, deltas_epsilon, words_epsilon: what all reports of a stream together may cost this user, over the
    device's whole life and at every server, at ``delta``; math.inf is no bound. Counts and words cost what their plan
    promises. Changes of the weights cost what the device's own noise leaves, and that of ``cohort - 1`` other devices
    where the app trusts that a server makes known only the sum of so many: 1 trusts nobody."""

    paper: bool = False
    max_words: int = 20
    max_weight: float = 1.0
    clip_norm: float = 10.0
    least_noise: float = 0.01
    measures: bool = False
    marginals_epsilon: float = 20.0
    deltas_epsilon: float = 20.0
    words_epsilon: float = 20.0
    delta: float = 1e-6
    cohort: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = field.name == "least_noise"
            if isinstance(value, bool) or (value > 0 or (least and value == 0)):  # not what is no number
                continue
            raise ConfigurationError(f"bounds.{field.name}: found {value!r}, expected more than 0")
        if self.delta >= 1 or math.isinf(self.least_noise) or self.cohort != int(self.cohort):
            found = f"{self.delta}, {self.least_noise}, {self.cohort}"
            expected = "expected a delta below 1, a finite noise, a whole cohort"
            raise ConfigurationError(f"bounds.delta, least_noise, cohort: found {found}; {expected}")

    def refusal(self, plan: Plan, spent: Spent) -> str | None:
        """Why no report is made by this plan: name, found and allowed; None if it may be. spent: in its stream."""
        from device_sdk.privacy.spending import cost_of, epsilon_of, stated, stream_of

        stream = stream_of(plan)
        after, most = spent.plus(cost_of(plan, self.cohort)), getattr(self, f"{stream}_epsilon")
        for field, refused, found, allowed in self._limits(plan):
            if refused:
                return _said(stream, field, found, allowed)
        life = "over this device's life"
        if stream == "words" and after.delta > self.delta and not math.isinf(most):
            field, found, allowed = "delta", f"{after.delta:.3g}", f"{self.delta:.3g} {life}"
        elif (epsilon := epsilon_of(after, self.delta)) > most:
            field, found, allowed = "epsilon", stated(epsilon), f"{stated(most)} at delta {self.delta:.3g} {life}"
        else:
            return None
        return _said(stream, field, f"{found} with what was spent", allowed)

    def _limits(self, plan: Plan) -> Iterator[tuple[str, bool, object, str]]:
        """(field, whether it is beyond these bounds, what was found, what is allowed), of one report."""
        from device_sdk.wire.messages import DeltaPlan, MarginalPlan

        if isinstance(plan, MarginalPlan):
            yield "mode", plan.mode != "bounded" and not self.paper, f"{plan.mode!r}", "'bounded' alone"
            yield "max_words", plan.max_words > self.max_words, plan.max_words, f"{self.max_words} at most"
            yield "max_weight", plan.max_weight > self.max_weight, plan.max_weight, f"{self.max_weight} at most"
        elif isinstance(plan, DeltaPlan):
            yield "clip_norm", plan.clip_norm > self.clip_norm, plan.clip_norm, f"{self.clip_norm} at most"
            least = f"{self.least_noise} of the clip norm {plan.clip_norm} at least"
            few = plan.noise_stddev < self.least_noise * plan.clip_norm
            yield "noise_stddev", few, plan.noise_stddev, least
            yield "measure", plan.measure != "none" and not self.measures, f"{plan.measure!r}", "'none' alone"


def _said(stream: str, field: str, found: object, allowed: str) -> str:
    return f"{stream}: {field}: found {found}; this device allows {allowed} (DeviceSettings.bounds)"
