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
Adjacency: one device added or removed. Trust: central, the server sees the words before it drops those below T."""

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from fractions import Fraction

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes, discrete_laplaces
from device_sdk.wire.messages import WordPlan
from device_sdk.wire.words import is_word
from server.privacy.noise import GRID


def noise_scale(plan: WordPlan) -> Fraction:
    """b, in devices: rounded up, since a larger scale costs less."""
    return Fraction(math.ceil(plan.max_words * GRID / Fraction(plan.epsilon)), GRID)


def threshold(plan: WordPlan) -> int:
    """T: the least noised number of devices at which a word is released."""
    scale = float(noise_scale(plan))
    decay = math.exp(-1 / scale)
    least = max(1, math.ceil(scale * math.log(plan.max_words / (plan.delta * (1 + decay)))))
    while failure_chance(plan, 1 + least) > plan.delta:  # the logarithm was rounded
        least += 1
    return 1 + least


def failure_chance(plan: WordPlan, least: int) -> float:
    """Chance that one of k words which nobody else named is released at a threshold of ``least``, at most."""
    scale = float(noise_scale(plan))
    return plan.max_words * math.exp(-(least - 1) / scale) / (1 + math.exp(-1 / scale))


def devices_of(contributions: Iterable[Set[str]], listed: Set[str], plan: WordPlan) -> dict[str, int]:
    """Word -> number of devices that named it, in alphabetical order, but for the ``listed`` ones, which are public.
    contributions: one set of words for each device. Raises PrivacyError for a device that names more than the plan
    allows, or what is no word."""
    devices: Counter[str] = Counter()
    for named in contributions:
        if len(named) > plan.max_words:
            raise PrivacyError(f"words: found {len(named)} of one device, expected at most {plan.max_words}")
        if not all(map(is_word, named)):
            raise PrivacyError("words: found one that does not begin with a letter, has a space or over 63 characters")
        devices.update(named - listed)
    return dict(sorted(devices.items()))


def released_words(
    devices: Mapping[str, int], plan: WordPlan, source: RandomBytes = secrets.token_bytes
) -> dict[str, int]:
    """Words to add to the list -> noised number of devices that named them, the most frequent first. devices: word ->
    number of devices, each of which counts in at most ``plan.max_words`` of them. source: of the noise's bits: the
    system's generator, or the stream of a release's secret key (:mod:`server.privacy.noise`)."""
    noise, least = discrete_laplaces(len(devices), noise_scale(plan), source), threshold(plan)
    noised = {word: count + int(draw) for (word, count), draw in zip(devices.items(), noise, strict=True)}
    kept = {word: count for word, count in noised.items() if count >= least}
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))
