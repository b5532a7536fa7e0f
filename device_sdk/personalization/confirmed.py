"""What a user is taken to have said once feedback has come: the texts that the unigram cache counts instead."""

from __future__ import annotations

from collections.abc import Sequence

from device_sdk.feedback.repair import repair
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Cancelled,
    Corrected,
    Rating,
    Repeated,
    Semantics,
    Signal,
    parts,
)
from device_sdk.feedback.slots import slot_cost

__all__ = ["confirmed_texts"]


def confirmed_texts(texts: Sequence[str], signal: Signal) -> tuple[str, ...] | None:
    """The texts to count, best first, in place of an n-best list; None leaves the list's own counts.

    texts: the n-best list as served. ``Accepted``, ``Alternate``, a ``Rating`` of 1/2 or more: None. ``Cancelled``,
    ``Repeated``, a lower ``Rating``: nothing is counted. ``Corrected``: the correction. ``Semantics``: the entries with
    every slot right, in their order; where there is none, the closest repair of an entry
    (``device_sdk.feedback.repair``), or else the entries with the fewest slot errors. So a misrecognized value does not
    enter the cache when the app knows the right one. Of several signals the one that tells most words decides: a
    correction, then semantics, then the rest.
    """
    if not texts:
        return None
    said = sorted(parts(signal), key=_telling)
    match said[0]:
        case Corrected(text=text):
            return (text,)
        case Semantics() as semantics:
            return _with_right_slots(texts, semantics)
        case Accepted() | Alternate():
            return None
        case Rating(value=value) if value >= 0.5:
            return None
        case Cancelled() | Repeated() | Rating():
            return ()


def _telling(signal: object) -> int:
    return 0 if isinstance(signal, Corrected) else 1 if isinstance(signal, Semantics) else 2


def _with_right_slots(texts: Sequence[str], signal: Semantics) -> tuple[str, ...]:
    costs = [slot_cost(text, signal.slots, signal.lexicon, signal.mode) for text in texts]
    if min(costs) > 0:
        repaired = repair(texts, signal.slots, signal.lexicon, limit=1)
        if repaired:
            return repaired
    return tuple(text for text, cost in zip(texts, costs, strict=True) if cost == min(costs))
