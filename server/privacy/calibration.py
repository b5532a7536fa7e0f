"""The noise that many rounds need: a plan whose releases together cost a user no more than is wanted."""

from __future__ import annotations

import math

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon, gaussian_ratio
from device_sdk.wire.messages import MarginalPlan
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose

__all__ = ["calibrated"]

ROUNDING = 2e-3


def calibrated(plan: MarginalPlan, user_epsilon: float, rounds: int, delta: float | None = None) -> MarginalPlan:
    """``plan`` with the largest epsilon of one release at which ``rounds`` of them cost a user at most ``user_epsilon``
    (to a few parts in 1,000), as the ledger composes them.

    delta: of the composition, by default the plan's. Raises PrivacyError for mode ``paper``, where no noise is enough.
    """
    if plan.mode == "paper":
        raise PrivacyError("mode: found paper, which promises nothing of a user; expected bounded")
    if not (0 < user_epsilon < math.inf and rounds >= 1):
        raise PrivacyError(f"user_epsilon, rounds: found {user_epsilon!r}, {rounds}; expected both above 0")

    target = plan.delta if delta is None else delta

    def with_epsilon(epsilon: float) -> MarginalPlan:
        return plan.model_copy(update={"epsilon": epsilon})

    def total(epsilon: float) -> float:
        settings = RoundSettings(marginals=with_epsilon(epsilon), minimum=plan.minimum_survivors)
        return compose(Spent({charge_for("marginals", settings): rounds}), target)[0]

    if plan.mechanism == "discrete_gaussian":
        # Known but for what whole numbers, and the ledger's rounding upwards, make of it.
        once = gaussian_ratio(user_epsilon * (1 - ROUNDING), target) / math.sqrt(rounds)
        epsilon = gaussian_epsilon(once, plan.delta)
        while total(epsilon) > user_epsilon:
            epsilon *= 1 - ROUNDING
        return with_epsilon(epsilon)
    low, high = user_epsilon / rounds / 2, user_epsilon
    while total(high) <= user_epsilon:  # with a delta, a pure mechanism costs less than its epsilon
        low, high = high, 2 * high
    while high - low > ROUNDING * low:
        middle = math.sqrt(low * high)
        if total(middle) <= user_epsilon:
            low = middle
        else:
            high = middle
    return with_epsilon(low)
