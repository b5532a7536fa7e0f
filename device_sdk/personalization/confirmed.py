"""What a user is taken to have said once feedback has come: the texts that the unigram cache counts instead."""

from __future__ import annotations

from collections.abc import Sequence

from device_sdk.feedback.repair import repair
from device_sdk.feedback.signals import Accepted, Cancelled, Corrected, Semantics, Signal
from device_sdk.feedback.slots import slot_cost

__all__ = ["confirmed_texts"]


def confirmed_texts(texts: Sequence[str], signal: Signal) -> tuple[str, ...] | None:
    """The texts to count, best first, in place of an n-best list; None leaves the list's own counts.

    texts: the n-best list as served. ``Accepted``: None. ``Cancelled``: nothing is counted. ``Corrected``: the
    correction. ``Semantics``: the entries with every slot right, in their order; where there is none, the closest
    repair of an entry (``device_sdk.feedback.repair``), or else the entries with the fewest slot errors. So a
    misrecognised value does not enter the cache when the app knows the right one.
    """
    if isinstance(signal, Accepted) or not texts:
        return None
    if isinstance(signal, Cancelled):
        return ()
    if isinstance(signal, Corrected):
        return (signal.text,)
    assert isinstance(signal, Semantics)
    costs = [slot_cost(text, signal.slots, signal.lexicon, signal.mode) for text in texts]
    if min(costs) > 0:
        repaired = repair(texts, signal.slots, signal.lexicon, limit=1)
        if repaired:
            return repaired
    return tuple(text for text, cost in zip(texts, costs, strict=True) if cost == min(costs))
