"""Whether the noise of a series of rounds protects anybody: if not, an operator has to say that it need not."""

import math

from device_sdk.privacy.spending import LARGEST_STATED, stated
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose, quick_bound
from server.privacy.ledger import Caps
from server.problems import Refusal

NOISE = {
    "marginals": "a smaller marginals.epsilon (`idiolect rounds plan --user-epsilon` finds it)",
    "deltas": "a larger noise_multiplier or deltas.noise_stddev (`idiolect privacy plan --deltas` finds it)",
    "words": "a smaller words.epsilon",
}
"""What gives a stream more noise."""


def series_epsilon(stream: str, settings: RoundSettings, delta: float) -> float:
    """Epsilon at ``delta`` of a user who is in every one of ``settings.rounds`` rounds, as the ledger composes them;
    an upper bound that takes no time, where that is small enough."""
    spent = Spent({charge_for(stream, settings): settings.rounds})
    bound = quick_bound(spent, delta)
    return bound if bound <= LARGEST_STATED or math.isinf(bound) else compose(spent, delta)[0]


def check_protection(settings: RoundSettings, caps: Caps) -> None:
    """Raises Refusal (422 ``no_privacy``) for rounds at whose end nothing is bounded for a user, or as good as nothing,
    unless they say so. What a stream's cap bounds is bounded."""
    if settings.no_privacy:
        return
    for stream in settings.streams:
        if caps.of(stream) <= LARGEST_STATED:
            continue
        epsilon = series_epsilon(stream, settings, caps.delta)
        if epsilon > LARGEST_STATED:
            times = "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds"
            found = f"{stream}: found noise that leaves a user, after {times}, epsilon {stated(epsilon)}"
            expected = f"expected at most {LARGEST_STATED:g} at delta {caps.delta:g}: {NOISE[stream]}, fewer rounds, "
            raise Refusal(422, "no_privacy", f"{found}; {expected}--{stream}-cap, or --no-privacy", stream)
