"""What one accepted report costs: a line of the ledger, known before the round opens."""

import math
from dataclasses import dataclass, fields, replace

from device_sdk.privacy.contributions import l1_sensitivity, l2_sensitivity, weight_units
from device_sdk.privacy.quantised import clip_steps, squared_ratio, squared_sensitivity
from device_sdk.wire.messages import FIXED_POINT, DeltaPlan, MarginalPlan, WordPlan
from server.plans.round import RoundSettings
from server.privacy.new_words import noise_scale
from server.privacy.noise import plan_noise

PAPER = "paper_laplace"
"""Mechanism of rounds in mode ``paper``: an epsilon of one count, none of an utterance or a user."""
DISTRIBUTED = "distributed_discrete_gaussian"
"""Mechanism of deltas that are summed by secure aggregation: accounted by zero-concentrated divergence alone."""


@dataclass(frozen=True, slots=True, order=True)
class Charge:
    """A mechanism with its parameters.

    sensitivity: the most by which one user changes one coordinate (a word's count; for deltas, the whole in its L2
    norm). coordinates: how many one user changes at most, each with its own draw. scale: of the noise that hides it,
    the Laplace scale or a standard deviation. delta: a chance of failure besides what composition asks for. epsilon,
    squared_ratio: bounds that just add up: epsilon of a pure mechanism, (L2 sensitivity / deviation)^2 of a Gaussian
    one. unbounded: no epsilon holds for a user. sampling: the probability q with which a user was in the round; 1
    without amplification. replaced: of a neighbour whose reports are any others instead of absent, for sampling only.
    """

    mechanism: str
    trust: str
    sensitivity: float
    scale: float
    coordinates: int = 1
    delta: float = 0.0
    epsilon: float = 0.0
    squared_ratio: float = 0.0
    unbounded: bool = False
    sampling: float = 1.0
    replaced: bool = False

    @property
    def count_epsilon(self) -> float | None:
        """What Liu & Peng 2020 states: epsilon of one count in one release; None where more is promised than that."""
        return self.sensitivity / self.scale if self.mechanism == PAPER else None


LEDGER_FIELDS = tuple(field.name for field in fields(Charge) if field.name not in ("sampling", "replaced"))
"""What a line of the ledger holds: those are of reports that came, so nothing was left to sampling."""


def charge_for(stream: str, settings: RoundSettings) -> Charge:
    """The cost of one report in a round; where accounting is amplified, of having been eligible."""
    if stream == "marginals":
        charge = _marginal_charge(settings.marginals or MarginalPlan())
    elif stream == "words":
        charge = _word_charge(settings.words or WordPlan())
    else:
        charge = _delta_charge(settings.deltas or DeltaPlan(), settings.minimum, settings.noise_multiplier)
    if settings.sampling is None or not settings.sampling.amplified:
        return charge
    return replace(charge, sampling=settings.sampling.rate or 1.0)


def _marginal_charge(plan: MarginalPlan) -> Charge:
    scale = plan_noise(plan).scale
    if plan.mode == "paper":
        return Charge(PAPER, plan.trust, FIXED_POINT, scale, unbounded=True)
    if plan.mechanism == "discrete_gaussian":
        # What the smallest cohort's shares add up to: more survivors, more noise.
        total = scale * math.sqrt(plan.minimum_survivors)
        ratio = (l2_sensitivity(plan) / total) ** 2
        return Charge("discrete_gaussian", plan.trust, weight_units(plan), total, plan.max_words, squared_ratio=ratio)
    epsilon = l1_sensitivity(plan) / scale
    return Charge("discrete_laplace", plan.trust, weight_units(plan), scale, plan.max_words, epsilon=epsilon)


def _word_charge(plan: WordPlan) -> Charge:
    """delta: the chance that a word which nobody else named passes the threshold."""
    scale = float(noise_scale(plan))
    return Charge("discrete_laplace", "central", 1, scale, plan.max_words, delta=plan.delta, epsilon=plan.epsilon)


def _delta_charge(plan: DeltaPlan, minimum: int, noise_multiplier: float) -> Charge:
    if noise_multiplier:
        scale = noise_multiplier * plan.clip_norm
        return Charge("gaussian", "central", plan.clip_norm, scale, squared_ratio=noise_multiplier**-2)
    if plan.noise_stddev == 0:
        return Charge("none", "none", plan.clip_norm, 0.0, unbounded=True)
    if plan.trust == "distributed":  # what rounding makes of the clipping bound, and no less noise than is unmasked
        longest = math.sqrt(squared_sensitivity(plan)) * plan.clip_norm / clip_steps(plan)
        total = plan.noise_stddev * math.sqrt(plan.minimum_survivors)
        return Charge(DISTRIBUTED, "distributed", longest, total, squared_ratio=squared_ratio(plan))
    total = plan.noise_stddev * math.sqrt(minimum)
    return Charge("gaussian", "share", plan.clip_norm, total, squared_ratio=(plan.clip_norm / total) ** 2)
