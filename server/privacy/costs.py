"""What a series of rounds costs a user, before it runs, and the noise with which it costs no more than is wanted."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon, gaussian_ratio
from device_sdk.wire.messages import FIXED_POINT, DeltaPlan, MarginalPlan
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose, exchange
from server.privacy.noise import plan_noise, released_variance

ROUNDING = 2e-3


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Of one stream over a series of rounds. user_epsilon: of a user who is in every round. utterance_epsilon: of one
    utterance, which is in one round. count_epsilon: of one count in all releases, mode ``paper`` only. scale_words: of
    one draw of marginals' noise. deviation_words: of all noise in a word's count after the last round with the fewest
    reports."""

    user_epsilon: float
    round_epsilon: float
    utterance_epsilon: float
    count_epsilon: float | None = None
    scale_words: float | None = None
    deviation_words: float | None = None


def round_costs(settings: RoundSettings, delta: float) -> dict[str, StreamCost]:
    """Stream -> what ``settings.rounds`` rounds cost, as the ledger composes them at ``delta``."""
    costs: dict[str, StreamCost] = {}
    for stream in settings.streams:
        charge = charge_for(stream, settings)
        everything = Spent({charge: settings.rounds})
        spent = everything, Spent({charge: 1}), Spent({exchange([charge])[0]: 1})
        user, once, utterance = (compose(each, delta)[0] for each in spent)
        costs[stream] = StreamCost(user, once, utterance)
        plan = settings.marginals
        if stream == "marginals" and plan is not None:
            releases = 1 if plan.mode == "paper" else settings.rounds  # counts so far take the place of those before
            deviation = math.sqrt(releases * released_variance(plan, settings.minimum))
            scale = plan_noise(plan).scale / FIXED_POINT
            costs[stream] = StreamCost(user, once, utterance, everything.count_epsilon, scale, deviation)
    return costs


def calibrate(plan: MarginalPlan, user_epsilon: float, rounds: int, delta: float = 1e-6) -> MarginalPlan:
    """``plan`` with the largest epsilon of one release at which ``rounds`` of them cost a user at most ``user_epsilon``
    at ``delta`` (to a few parts in 1,000), as the ledger composes them. Raises PrivacyError for mode ``paper``, where
    no noise is enough."""
    if plan.mode == "paper":
        raise PrivacyError("mode: found paper, which promises nothing of a user; expected bounded")
    _check_wanted(user_epsilon, rounds)

    def with_epsilon(epsilon: float) -> MarginalPlan:
        return plan.model_copy(update={"epsilon": epsilon})

    def total(epsilon: float) -> float:
        settings = RoundSettings(marginals=with_epsilon(epsilon), minimum=plan.minimum_survivors)
        return compose(Spent({charge_for("marginals", settings): rounds}), delta)[0]

    if plan.mechanism == "discrete_gaussian":
        # Known but for what whole numbers, and the ledger's rounding upwards, make of it.
        once = gaussian_ratio(user_epsilon * (1 - ROUNDING), delta) / math.sqrt(rounds)
        epsilon = gaussian_epsilon(once, plan.delta)
        while total(epsilon) > user_epsilon:
            epsilon *= 1 - ROUNDING
        return with_epsilon(epsilon)
    low, high = user_epsilon / rounds / 2, user_epsilon
    while total(high) <= user_epsilon:  # with a delta, a pure mechanism costs less than its epsilon
        low, high = high, 2 * high
    return with_epsilon(_edge(lambda epsilon: total(epsilon) <= user_epsilon, low, high, ROUNDING))


def calibrate_shares(plan: DeltaPlan, user_epsilon: float, rounds: int, delta: float = 1e-6) -> DeltaPlan:
    """``plan``, whose deltas are summed by secure aggregation, with the least share of the noise at which ``rounds``
    rounds cost a user at most ``user_epsilon`` at ``delta`` (to a few parts in 1,000), as the ledger composes them.
    Raises PrivacyError where a share must be larger for its own sake: take more bits."""
    _check_wanted(user_epsilon, rounds)

    def with_share(stddev: float) -> DeltaPlan:
        return plan.model_copy(update={"noise_stddev": stddev})

    def total(stddev: float) -> float:
        settings = RoundSettings.model_construct(marginals=None, deltas=with_share(stddev))
        return compose(Spent({charge_for("deltas", settings): rounds}), delta)[0]

    high = plan.clip_norm
    while total(high) > user_epsilon:
        high *= 2
    low = high / 2
    while total(low) <= user_epsilon:
        low, high = low / 2, low
    return with_share(_edge(lambda stddev: total(stddev) <= user_epsilon, high, low, ROUNDING / 2))


def _edge(fits: Callable[[float], bool], inside: float, outside: float, close: float) -> float:
    """What still fits next to where nothing does any more, to a part ``close``; inside fits, outside does not."""
    while abs(outside - inside) > close * min(inside, outside):
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _check_wanted(user_epsilon: float, rounds: int) -> None:
    if not (0 < user_epsilon < math.inf and rounds >= 1):
        raise PrivacyError(f"user_epsilon, rounds: found {user_epsilon!r}, {rounds}; expected both above 0")
