"""Weighted counts of one utterance: its words, and what feedback says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from rescoring import marginals
from rescoring.combination import CombinationWeights
from rescoring.words import WordList

__all__ = ["UtteranceCounts", "confirmed_texts", "count", "heard"]


@dataclass(frozen=True, slots=True)
class UtteranceCounts:
    """Weighted counts of one utterance (the sum of eq. 4 over one n-best list).

    listed: word id -> weight, id 0 the bucket. unlisted: word -> weight; their sum is the bucket's weight.
    """

    listed: Mapping[int, float]
    unlisted: Mapping[str, float] = field(default_factory=dict)


def count(
    texts: Sequence[str],
    words: WordList,
    sigma: float,
    *,
    weights: Sequence[float] | None = None,
) -> UtteranceCounts:
    """Weighted counts of one utterance (Liu & Peng 2020, eq. 3 and the sum of eq. 4).

    texts: the n-best list's texts, best first; one text (a correction, say) counts fully. sigma: the kernel's width.
    weights: what each text counts, in place of the kernel.
    """
    listed: dict[int, float] = {}
    unlisted: dict[str, float] = {}
    counted = marginals.nbest_weights(len(texts), sigma).tolist() if weights is None else list(weights)
    for text, weight in zip(texts, counted, strict=True):
        if weight <= 0:
            continue
        for word, word_id in zip(text.split(), words.ids(text), strict=True):
            listed[word_id] = listed.get(word_id, 0.0) + weight
            if word_id == 0:
                unlisted[word] = unlisted.get(word, 0.0) + weight
    return UtteranceCounts(listed, unlisted)


def heard(
    texts: Sequence[str],
    words: WordList,
    weights: CombinationWeights,
    scores: Sequence[float] | None = None,
) -> UtteranceCounts:
    """``count`` as the combination says: by rank, or by posterior where the texts have scores (nats)."""
    shares = marginals.nbest_weights(len(texts), weights.sigma, scores, weights.posterior_scale).tolist()
    return count(texts, words, weights.sigma, weights=shares)


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
