"""Whether an utterance says the one before it again: by how alike their n-best lists are, and how soon it came.

A user who repeats a request was misunderstood (Rao et al. 2023, sections 1 and 2.3). Nobody has to press a button for
that: two n-best lists of the same words share a hypothesis, or nearly so, even where their best ones differ.

The default threshold was chosen on 392 real coffee orders, repeated up to a tenth slower or faster in noise at 10 to 25
dB: it finds 86 % of the repetitions that were recognized otherwise, and mistakes 0.3 % of other pairs for one."""

from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.checks import check_intervals
from device_sdk.feedback.distance import similarity
from device_sdk.feedback.signals import Accepted, Alternate, Corrected, Semantics, Signal

_LAG = 0.25
"""Seconds that recognition may come behind live speech."""


@dataclass(frozen=True, slots=True)
class RepetitionSettings:
    """similarity: two n-best lists are of the same words when :func:`likeness` is at least this; above 1 finds none.
    seconds: a repetition begins at most this long after its first ended. texts: how many of each list are compared."""

    similarity: float = 0.8
    seconds: float = 10.0
    texts: int = 4

    def __post_init__(self) -> None:
        check_intervals("repetition", self, "[0, inf)", "similarity", "seconds")
        check_intervals("repetition", self, "[1, inf)", "texts")


def likeness(first: Sequence[str], second: Sequence[str]) -> float:
    """How alike the closest two texts of two lists are: 1 where they share one, 0 for empty lists. "" is like none."""
    return max((similarity(left, right) for left in first for right in second if left and right), default=0.0)


def is_repetition(
    first: Sequence[str], second: Sequence[str], delay: float, settings: RepetitionSettings = RepetitionSettings()
) -> bool:
    """Whether ``second`` says ``first`` again. Texts of two n-best lists, best first; delay: seconds of silence between
    them, from the end of the first to the beginning of the second. A negative delay means that the second was there
    before the first had ended, as where an app feeds recordings: that is no repetition."""
    if not first or not second or not 0.0 <= delay <= settings.seconds:
        return False
    if first[0] == second[0]:  # "next", said twice and heard twice, is wanted twice
        return False
    return likeness(first[: settings.texts], second[: settings.texts]) >= settings.similarity


def silence(elapsed: float, seconds: float, start: float) -> float:
    """Seconds between the end of an utterance and the first word of the next, for :func:`is_repetition`. elapsed: since
    the result of the first, when that of the second is there. seconds: length of the second's audio; start: of its
    first word therein. Negative where this much audio cannot have been spoken since, up to a small lag."""
    if elapsed < seconds - _LAG:
        return elapsed - seconds
    return max(0.0, elapsed - seconds + start)


def carried_back(signal: Signal, served: str) -> Signal | None:
    """What feedback to a repetition says of the utterance that it repeats; None for nothing. served: what the
    repetition was served as. Rao et al. 2023 (section 1): what the last request turned out to mean is feedback for the
    first. The words may have been put otherwise the second time, so they are an ``Alternate``."""
    match signal:
        case Accepted():
            return Alternate(served) if any(map(str.isalpha, served)) else None
        case Corrected(text=text):
            return Alternate(text)
    return signal if isinstance(signal, Alternate | Semantics) else None
