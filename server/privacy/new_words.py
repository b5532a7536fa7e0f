"""New words for the public list, by a release that is (epsilon, delta)-private for every device.

Words outside the list never leave a device through marginals. Where a user agrees to it, a device names at most k of
them. How many devices named a word is noised, and the word is released only where that passes a threshold so high that
a word of one device alone hardly ever does.

k: words a device names. b = k / epsilon: scale of the discrete Laplace noise. p = exp(-1 / b). One device changes at
most k counts by 1, which costs epsilon for words that others named too. A word of its own has the count 1 where the
device takes part, and cannot be released where it does not, so what epsilon does not cover is the chance that one of k
such words passes the threshold T:

    delta = k P(1 + noise >= T) = k p^(T - 1) / (1 + p)    for whole T above 1

and the threshold is the least whole T for which that is at most delta, about 1 + (k / epsilon) ln(k / (2 delta)).
Adjacency: one device added or removed. Trust: central, the server sees the words before it drops those below T.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import PrivacyError
from device_sdk.privacy.new_words import WORD
from server.privacy import samplers
from server.privacy.charges import Charge

__all__ = ["NewWordsPlan", "failure_chance", "new_words_charge", "released_words", "threshold"]


@dataclass(frozen=True, slots=True)
class NewWordsPlan:
    """max_words: k, distinct words a device may name. epsilon, delta: of one release. Raises PrivacyError."""

    max_words: int = 5
    epsilon: float = 1.0
    delta: float = 1e-7

    def __post_init__(self) -> None:
        if not 1 <= self.max_words <= 1000:
            raise PrivacyError(f"max_words: found {self.max_words}, expected 1 to 1000")
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise PrivacyError(
                f"epsilon, delta: found {self.epsilon!r}, {self.delta!r}; expected epsilon > 0 and delta inside (0, 1)"
            )

    @property
    def scale(self) -> float:
        """b, in devices."""
        return self.max_words / self.epsilon


def threshold(plan: NewWordsPlan) -> int:
    """T: the least noised number of devices at which a word is released."""
    decay = math.exp(-1 / plan.scale)
    least = max(1, math.ceil(plan.scale * math.log(plan.max_words / (plan.delta * (1 + decay)))))
    while failure_chance(plan, 1 + least) > plan.delta:  # the logarithm was rounded
        least += 1
    return 1 + least


def failure_chance(plan: NewWordsPlan, least: int) -> float:
    """Chance that one of k words which nobody else named is released at a threshold of ``least``, at most."""
    return plan.max_words * math.exp(-(least - 1) / plan.scale) / (1 + math.exp(-1 / plan.scale))


def released_words(contributions: Iterable[Set[str]], listed: Set[str], plan: NewWordsPlan) -> dict[str, int]:
    """Words to add to the list -> noised number of devices that named them, the most frequent first.

    contributions: one set of words for each device. listed: the words that are public already; they are left out.
    Raises PrivacyError for a device that names more than the plan allows, or what is no word.
    """
    devices: Counter[str] = Counter()
    for named in contributions:
        if len(named) > plan.max_words:
            raise PrivacyError(f"words: found {len(named)} of one device, expected at most {plan.max_words}")
        if not all(WORD.fullmatch(word) for word in named):
            raise PrivacyError("words: found one that does not begin with a letter, has a space or over 63 characters")
        devices.update(named - listed)
    cost = samplers.laplace_loss(plan.scale, plan.max_words)
    if cost > plan.epsilon * (1 + 1e-12):
        raise PrivacyError(f"noise scale {plan.scale}: costs {cost}, expected at most {plan.epsilon}")
    words = sorted(devices)
    noised = samplers.laplace_draws(np.array([devices[word] for word in words], np.int64), plan.scale)
    kept = {word: int(count) for word, count in zip(words, noised.tolist(), strict=True) if count >= threshold(plan)}
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))


def new_words_charge(plan: NewWordsPlan) -> Charge:
    """What one device's contribution costs; composes with the ledger's other lines."""
    return Charge("discrete_laplace", "central", 1, plan.scale, plan.max_words, delta=plan.delta, epsilon=plan.epsilon)
