"""What an app can say about an utterance after it has acted, and what that costs each hypothesis.

One table says it all; M is the cost in [0, 1] that paper 001 (sections 2.3.1 and 2.3.2) calls M(y, z), never above 1:

| signal | the app saw | cost of a hypothesis y | label |
|---|---|---|---|
| ``Accepted()`` | the user went on with it | word error rate against the served text | the served text |
| ``Cancelled()`` | the user undid or repeated it | 1 for the served text, 0 for every other | none |
| ``Corrected(text)`` | the user gave the words | word error rate against the text | the text |
| ``Semantics(slots, lexicon)`` | what was done | (wrong + missing + extra) / true slots | the cheapest candidate |

An app whose outcomes say more passes its own :data:`CostFunction` when it opens the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.errors import FeedbackError
from device_sdk.feedback.distance import word_error_rate
from device_sdk.feedback.slots import CostMode, SlotLexicon, semantic_cost

__all__ = ["Accepted", "Cancelled", "Corrected", "CostFunction", "Semantics", "Signal", "costs"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The user went along with what was served."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user undid what was done, or said it again."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The user gave the words. text: lower-case words."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.split():
            raise FeedbackError(f"corrected.text: found {self.text!r}, expected one or more words")
        object.__setattr__(self, "text", " ".join(self.text.lower().split()))


@dataclass(frozen=True, slots=True)
class Semantics:
    """The slots of the request that was carried out in the end. slots: type -> value, as in the lexicon.

    mode: how errors are counted, see :mod:`device_sdk.feedback.slots`.
    """

    slots: Mapping[str, str]
    lexicon: SlotLexicon
    mode: CostMode = "strict"

    def __post_init__(self) -> None:
        for name, value in self.slots.items():
            if not isinstance(value, str) or not value.split():
                raise FeedbackError(f"semantics.slots[{name!r}]: found {value!r}, expected one or more words")
        if self.mode not in ("strict", "paper"):
            raise FeedbackError(f"semantics.mode: found {self.mode!r}, expected 'strict' or 'paper'")


Signal = Accepted | Cancelled | Corrected | Semantics

CostFunction = Callable[[Signal, Sequence[str], str], Sequence[float]]
"""(signal, texts [N], served text) -> costs [N] in [0, 1]."""


def costs(signal: Signal, texts: Sequence[str], served: str) -> npt.NDArray[np.float32]:
    """M(y_i, z) of each hypothesis' text under the table above (paper 001, sections 2.3.1 and 2.3.2).

    N: hypotheses. texts: [N]; served: the text that the app acted on. Returns float32 [N] in [0, 1].
    FeedbackError: ``signal`` is none of the four.
    """
    match signal:
        case Accepted():
            values = [word_error_rate(served, text) for text in texts]
        case Cancelled():
            values = [float(text == served) for text in texts]
        case Corrected(text=reference):
            values = [word_error_rate(reference, text) for text in texts]
        case Semantics(slots=slots, lexicon=lexicon, mode=mode):
            values = [semantic_cost(text, slots, lexicon, mode) for text in texts]
        case _:
            raise FeedbackError(
                f"signal: found {type(signal).__name__}, expected Accepted, Cancelled, Corrected or Semantics"
            )
    return np.minimum(np.asarray(values, np.float32), np.float32(1.0))


def check_costs(values: Sequence[float], count: int) -> npt.NDArray[np.float32]:
    """An app's own costs, as float32 [N]. FeedbackError: another number of them, or a value outside [0, 1]."""
    array = np.asarray(values, np.float32)
    if array.shape != (count,):
        raise FeedbackError(f"cost function: found shape {array.shape}, expected ({count},), one cost a hypothesis")
    if not np.all((array >= 0) & (array <= 1)):
        raise FeedbackError(f"cost function: found {array.tolist()}, expected values in [0, 1]")
    return array
