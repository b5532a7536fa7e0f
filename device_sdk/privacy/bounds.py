"""What a server may ask of a device at most, by the device's own settings: an offer beyond it is left out.

The bounds of a round's plan are the server's choice, and its noise is the server's promise. These are the app's: they
hold whatever is offered, by whichever server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from device_sdk.errors import ConfigurationError

if TYPE_CHECKING:  # a device starts without pydantic, and without what only a check-in reckons with
    from device_sdk.privacy.spending import Spent
    from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan

__all__ = ["OfferBounds"]


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
    where the app trusts that a server makes known only the sum of so many: 1 trusts nobody.
    """

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
            raise ConfigurationError(
                f"bounds.delta, least_noise, cohort: found {self.delta}, {self.least_noise}, {self.cohort}; expected a "
                "delta below 1, a finite noise, a whole cohort"
            )

    def against_marginals(self, plan: MarginalPlan, spent: Spent) -> str | None:
        """Why counts are not reported as this plan wants them, None where they may be. spent: in the stream so far."""
        from device_sdk.privacy.spending import marginal_cost

        if plan.mode != "bounded" and not self.paper:
            return _said("marginals", "mode", f"{plan.mode!r}", "'bounded' alone")
        for name in ("max_words", "max_weight"):
            if getattr(plan, name) > getattr(self, name):
                return _said("marginals", name, getattr(plan, name), f"{getattr(self, name)} at most")
        return self._over("marginals", spent.plus(marginal_cost(plan)), self.marginals_epsilon)

    def against_deltas(self, plan: DeltaPlan, spent: Spent) -> str | None:
        """The same of changes of the weights."""
        from device_sdk.privacy.spending import delta_cost

        if plan.clip_norm > self.clip_norm:
            return _said("deltas", "clip_norm", plan.clip_norm, f"{self.clip_norm} at most")
        if plan.noise_stddev < self.least_noise * plan.clip_norm:
            least = f"{self.least_noise} of the clip norm {plan.clip_norm} at least"
            return _said("deltas", "noise_stddev", plan.noise_stddev, least)
        if plan.measure != "none" and not self.measures:
            return _said("deltas", "measure", f"{plan.measure!r}", "'none' alone")
        return self._over("deltas", spent.plus(delta_cost(plan, self.cohort)), self.deltas_epsilon)

    def against_words(self, plan: WordPlan, spent: Spent) -> str | None:
        """The same of words outside the public list."""
        from device_sdk.privacy.spending import word_cost

        after = spent.plus(word_cost(plan))
        if after.delta > self.delta and not math.isinf(self.words_epsilon):
            allowed = f"{self.delta:.3g} over this device's life"
            return _said("words", "delta", f"{after.delta:.3g} with what was spent", allowed)
        return self._over("words", after, self.words_epsilon)

    def _over(self, stream: str, after: Spent, most: float) -> str | None:
        from device_sdk.privacy.spending import epsilon_of

        found = epsilon_of(after, self.delta)
        if found <= most:
            return None
        allowed = f"{most:.4g} at delta {self.delta:.3g} over this device's life"
        return _said(stream, "epsilon", f"{found:.4g} with what was spent", allowed)


def _said(stream: str, field: str, found: object, allowed: str) -> str:
    return f"{stream}: {field}: found {found}; this device allows {allowed} (DeviceSettings.bounds)"
