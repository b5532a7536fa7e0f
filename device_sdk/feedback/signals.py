"""What an app can say about an utterance after it has acted, and what that costs each hypothesis.

One table says it all; M is the cost in [0, 1] that Rao et al. 2023 (sections 2.3.1 and 2.3.2) calls M(y, z), never
above 1:

| signal | the app saw | cost of a hypothesis y | label |
|---|---|---|---|
| ``Accepted()`` | the user went on with it | word error rate against the served text | the served text |
| ``Cancelled()`` | the user undid it | 1 for the served text, 0 for every other | none |
| ``Repeated(texts)`` | the user said it again | 1 for the served text, see below for others | none |
| ``Rating(x)`` | the user's own judgement | 1 - x for the served text, x for every other | served, 2 x - 1 |
| ``Corrected(text)`` | the user gave the words | word error rate against the text | the text |
| ``Alternate(text)`` | another recognizer's words | word error rate against the text | cheapest |
| ``Semantics(slots, lexicon)`` | what was done in the end | (wrong + missing + extra) / true slots | cheapest |

*cheapest*: the teacher's label if no candidate costs less, else the likeliest of the cheapest, weighed by 1 - M.
*Repeated*: another hypothesis costs the smallest word error rate against a text that the repetition was heard as; 0
where it was heard as the same again, or the app only knows that there was one. Where nothing is known but that the
served text was wrong, expected costs weigh as much as it is likely that another of the list is right, by confidences,
and nothing below 5 %. *Rating*: x is how sure it is that the served text was right; costs are the sentence error rate
to expect then. 1/2 says nothing, 0 is ``Cancelled()``; above 1/2 the served text is a label of weight 2 x - 1.

The first four judge what was served; of these the last one counts. Of the others the last one of each kind does, unless
the user cancelled or repeated since: that takes back all that was said before. What remains of one utterance's signals
is :class:`Together`: its cost is the mean of theirs, every signal weighing the same (as Rao et al. 2023 weighs losses),
and a correction alone makes the label.

An app whose outcomes say more passes its own :data:`CostFunction` when it opens the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.errors import FeedbackError
from device_sdk.feedback.distance import word_error_rate
from device_sdk.feedback.slots import CostMode, SlotLexicon, named_slots, semantic_cost
from device_sdk.transcripts import check_letters, in_letters, transcript


@dataclass(frozen=True, slots=True)
class Accepted:
    """The user went along with what was served."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user undid what was done."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The user said it again, so it was heard wrongly. texts: what the repetition was heard as, its n-best list's
    texts; none where the app only knows that there was one."""

    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.texts, tuple) or not all(isinstance(text, str) for text in self.texts):
            raise FeedbackError(f"repeated.texts: found {type(self.texts).__name__}, expected a tuple of texts")


@dataclass(frozen=True, slots=True)
class Rating:
    """The user's own judgement. value: in [0, 1]; 1 is right, 0 wrong, 1/2 says nothing."""

    value: float

    def __post_init__(self) -> None:
        number = isinstance(self.value, int | float)
        if not (number and 0.0 <= self.value <= 1.0):
            found = self.value if number else type(self.value).__name__
            raise FeedbackError(f"rating.value: found {found}, expected a number in [0, 1]")


@dataclass(frozen=True, slots=True)
class Corrected:
    """The user gave the words. text: as they were said; capitals and punctuation go (:mod:`device_sdk.transcripts`),
    and accents that the model cannot write."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", transcript(self.text, "corrected.text", FeedbackError))


@dataclass(frozen=True, slots=True)
class Alternate:
    """Another recognizer's transcript, which may err (Rao et al. 2023, section 2.3.1). text: see :class:`Corrected`."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", transcript(self.text, "alternate.text", FeedbackError))


@dataclass(frozen=True, slots=True)
class Semantics:
    """The slots of the request that was carried out in the end. slots: type -> value, both of the lexicon. mode: how
    errors are counted, see :mod:`device_sdk.feedback.slots`."""

    slots: Mapping[str, str]
    lexicon: SlotLexicon
    mode: CostMode = "strict"

    def __post_init__(self) -> None:
        if not isinstance(self.lexicon, SlotLexicon):
            raise FeedbackError(f"semantics.lexicon: found {type(self.lexicon).__name__}, expected a SlotLexicon")
        slots: dict[str, str] = {}
        for name, value in named_slots(self.slots, "semantics.slots").items():
            if name not in self.lexicon.values:
                known = ", ".join(map(repr, self.lexicon.values))
                raise FeedbackError(f"semantics.slots: found {name!r}, expected slots of the lexicon: {known}")
            slots[name] = transcript(value, f"semantics.slots[{name!r}]", FeedbackError)
            if not self.lexicon.holds(name, slots[name]):
                raise FeedbackError(
                    f"semantics.slots[{name!r}]: found a value that the lexicon does not hold, expected one of its "
                    f"{len(self.lexicon.values[name])}; add it to the lexicon"
                )
        object.__setattr__(self, "slots", slots)
        if self.mode not in ("strict", "paper"):
            raise FeedbackError(f"semantics.mode: found {self.mode!r}, expected 'strict' or 'paper'")


Single = Accepted | Cancelled | Repeated | Rating | Corrected | Alternate | Semantics
"""One row of the table."""


@dataclass(frozen=True, slots=True)
class Together:
    """Several signals about one utterance, no two of a kind, in the order of the table. Made by :func:`combined`."""

    signals: tuple[Single, ...]


Signal = Single | Together

CostFunction = Callable[[Signal, Sequence[str], str], Sequence[float]]
"""(signal, texts [N], served text) -> costs [N] in [0, 1]. Of several signals, all are given at once, as
:class:`Together`."""

_JUDGEMENTS = (Accepted, Cancelled, Repeated, Rating)
_KINDS: tuple[tuple[type, ...], ...] = (_JUDGEMENTS, (Corrected,), (Alternate,), (Semantics,))


def written(signal: object, letters: Set[str]) -> Signal:
    """The signal with its words as a model of these letters writes them (:func:`device_sdk.transcripts.in_letters`).
    FeedbackError: it is none of the table, or says words that the model cannot write; a value of a slot stays as the
    lexicon has it, which must be in these letters."""
    if not isinstance(signal, Signal):
        names = ", ".join(kind.__name__ for kind in (*_JUDGEMENTS, Corrected, Alternate))
        raise FeedbackError(f"signal: found {type(signal).__name__}, expected {names} or Semantics")
    found = tuple(_written(part, letters) for part in parts(signal))
    return Together(found) if isinstance(signal, Together) else found[0]


def _written(part: Single, letters: Set[str]) -> Single:
    match part:
        case Corrected(text=text) | Alternate(text=text):
            return replace(part, text=in_letters(text, letters, f"{type(part).__name__.lower()}.text", FeedbackError))
        case Semantics(slots=slots):
            for name, value in slots.items():
                check_letters(value, letters, f"semantics.slots[{name!r}]", FeedbackError)
    return part


def parts(signal: Signal | None) -> tuple[Single, ...]:
    """The signals that one consists of: itself, where it is not several; nothing, where there is none."""
    return signal.signals if isinstance(signal, Together) else () if signal is None else (signal,)


def correction(signal: Signal | None) -> str | None:
    """The words that the user gave, None where no part of the signal gives them."""
    return next((part.text for part in parts(signal) if isinstance(part, Corrected)), None)


def combined(earlier: Signal | None, later: Signal) -> Signal:
    """All that is known of an utterance after ``later`` came, by the rules above."""
    known = parts(earlier)
    for signal in parts(later):
        known = (signal,) if isinstance(signal, Cancelled | Repeated) else (*known, signal)
    kept = tuple(each for kind in _KINDS for each in [each for each in known if isinstance(each, kind)][-1:])
    return kept[0] if len(kept) == 1 else Together(kept)


def costs(signal: Signal, texts: Sequence[str], served: str) -> npt.NDArray[np.float32]:
    """M(y_i, z) of each hypothesis' text under the table above (Rao et al. 2023, sections 2.3.1 and 2.3.2). N:
    hypotheses. texts: [N]; served: the text that the app acted on. Returns float32 [N] in [0, 1]."""
    match signal:
        case Accepted():
            values = [word_error_rate(served, text) for text in texts]
        case Cancelled():
            values = [float(text == served) for text in texts]
        case Repeated(texts=heard):
            others = [text for text in heard if text != served]
            values = [
                1.0 if text == served else min((word_error_rate(other, text) for other in others), default=0.0)
                for text in texts
            ]
        case Rating(value=value):
            values = [1.0 - value if text == served else value for text in texts]
        case Corrected(text=reference) | Alternate(text=reference):
            values = [word_error_rate(reference, text) for text in texts]
        case Semantics(slots=slots, lexicon=lexicon, mode=mode):
            values = [semantic_cost(text, slots, lexicon, mode) for text in texts]
        case Together(signals=signals):
            values = list(np.mean([costs(each, texts, served) for each in signals], axis=0))
    return np.minimum(np.asarray(values, np.float32), np.float32(1.0))


def check_costs(values: Sequence[float], count: int) -> npt.NDArray[np.float32]:
    """An app's own costs, as float32 [N]. FeedbackError: another number of them, or a value outside [0, 1]."""
    array = np.asarray(values, np.float32)
    if array.shape != (count,):
        raise FeedbackError(f"cost function: found shape {array.shape}, expected ({count},), one cost a hypothesis")
    if not np.all((array >= 0) & (array <= 1)):
        raise FeedbackError(f"cost function: found {array.tolist()}, expected values in [0, 1]")
    return array


def prices(
    signal: Signal, texts: Sequence[str], served: str, cost_function: CostFunction | None
) -> npt.NDArray[np.float32]:
    """:func:`costs`, or the app's own where it has a function for them."""
    if cost_function is None:
        return costs(signal, texts, served)
    return check_costs(cost_function(signal, texts, served), len(texts))
