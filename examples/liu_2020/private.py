"""Plans of rounds whose releases together cost a user no more than a given epsilon."""

from __future__ import annotations

from device_sdk.errors import PrivacyError
from device_sdk.wire.messages import MarginalPlan
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose

__all__ = ["DELTA", "plan_for", "user_epsilon"]

DELTA = 1e-6
"""Of a user, over all rounds together."""

_STEPS = 12


def plan_for(epsilon: float, rounds: int) -> MarginalPlan:
    """The plan with nearly the least noise such that ``rounds`` reports of a user cost at most ``epsilon`` (and DELTA).

    Everything else is a round's default: 20 words of each device, a weight of 1 each, discrete Laplace by the server.
    """
    if not epsilon > 0 or rounds < 1:
        raise PrivacyError(f"epsilon, rounds: found {epsilon!r}, {rounds!r}; expected more than 0, and 1 or more")
    low, high = epsilon / rounds, epsilon  # pure epsilons add up; a single release may have all of it
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        fits = user_epsilon(MarginalPlan(epsilon=middle), rounds) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return MarginalPlan(epsilon=low)


def user_epsilon(plan: MarginalPlan, rounds: int) -> float:
    """What ``rounds`` reports of a user cost together at DELTA, by privacy loss distributions."""
    return compose(Spent({charge_for("marginals", RoundSettings(marginals=plan)): rounds}), DELTA)[0]
