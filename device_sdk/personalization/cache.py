"""The n-best unigram cache: what a user said, as weighted word counts (Liu & Peng 2020, section 2.2).

A cache is frozen data; every function returns a new one. n: words on the public list, id 0 the bucket of all others,
which is not counted. Words outside the list are counted one by one, in ``unlisted``, and what the user confirmed in
``confirmed``; both exist on the device only: no report is made from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import reading
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

FORMAT = 1
UNLISTED_LIMIT = 5000
"""Distinct unlisted words, and distinct confirmed phrases, a cache keeps; beyond it the rarest are forgotten."""

LONGEST_VALUE = 4
"""Words of a slot's value that is confirmed as one phrase."""

EVIDENCE = 50.0
"""Confirmed words that are half of the way from what was heard to what was confirmed."""

STRENGTH_EVIDENCE = 1000.0
"""Confirmed words that are half of the way to a lambda at which they count fully."""


@dataclass(frozen=True, slots=True)
class MarginalCache:
    """Weighted word counts of one user. counts: float64 [n], everything heard so far; total: their sum. pending:
    float64 [n], the part not reported yet. unlisted: words outside the list -> weight, on the device only. utterances,
    pending_utterances: how many. words_digest: the word list that the ids belong to. confirmed: phrases, of words
    listed or not -> in how many utterances the user confirmed them."""

    words_digest: str
    counts: NDArray[np.float64]
    pending: NDArray[np.float64]
    unlisted: Mapping[str, float]
    utterances: int = 0
    pending_utterances: int = 0
    confirmed: Mapping[str, float] = field(default_factory=dict)
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", float(self.counts.sum()))


def empty(words: WordList) -> MarginalCache:
    """A cache that has heard nothing yet."""
    return MarginalCache(words.digest, np.zeros(len(words)), np.zeros(len(words)), {})


def update(cache: MarginalCache, counts: UtteranceCounts, due: bool = True) -> MarginalCache:
    """The cache after one more utterance. due: whether it is to be reported; False for one that was already."""
    return _add(cache, counts, 1, due)


def withdraw(cache: MarginalCache, counts: UtteranceCounts, due: bool = True) -> MarginalCache:
    """The cache without an utterance it holds: a cancelled command, or one whose correction is counted instead. due:
    False for an utterance that was already reported: what is pending is of others then. No count falls below zero."""
    return _add(cache, counts, -1, due)


def reported(cache: MarginalCache) -> MarginalCache:
    """The cache after its pending counts were handed to a report: each utterance is reported once."""
    return replace(cache, pending=np.zeros_like(cache.pending), pending_utterances=0)


def without(cache: MarginalCache, words: Sequence[str]) -> MarginalCache:
    """The cache that never heard these words confirmed, nor, where they are on no list, at all."""
    unlisted, confirmed = (
        {phrase: weight for phrase, weight in counts.items() if not set(words) & set(phrase.split())}
        for counts in (cache.unlisted, cache.confirmed)
    )
    return replace(cache, unlisted=unlisted, confirmed=confirmed)


def word_counts(confirmed: Mapping[str, float]) -> dict[str, float]:
    """The words of confirmed phrases -> in how many utterances, as the phrases are counted."""
    counts = dict[str, float]()
    for phrase, count in confirmed.items():
        for word in phrase.split():
            counts[word] = counts.get(word, 0.0) + count
    return counts


def confirmed_counts(cache: MarginalCache, words: WordList) -> marginals.Counts:
    """What was confirmed, by the ids of a list [n]; what is not on it is left out. It stays the same until feedback
    comes, so that a device looks it up seldom."""
    known = word_counts(cache.confirmed)
    counts = np.bincount(words.ids(known), list(known.values()), len(words)).astype(np.float64)
    counts[0] = 0.0
    return marginals.Counts(counts, float(counts.sum()))


def personal_marginal(
    cache: MarginalCache,
    words: WordList,
    background: NDArray[np.float64],
    global_: NDArray[np.float64] | None,
    weights: CombinationWeights,
    confirmed: marginals.Counts | None = None,
) -> marginals.PersonalMarginal:
    """What rescoring adapts to (Liu & Peng 2020, eq. 2): to what was heard, as long as nothing was confirmed; and the
    more of what was confirmed there is, the more to that, and the more strongly. global_: published by the server [n],
    or None. confirmed: :func:`confirmed_counts` where they are known already."""
    if confirmed is None:
        confirmed = confirmed_counts(cache, words)
    share = marginals.confirmed_share(confirmed.total, EVIDENCE)
    heard = marginals.Counts(cache.counts, cache.total)
    mixture = marginals.refreshed_marginal(
        heard, background, global_, weights.alpha, weights.beta, weights.smoothing, confirmed, share
    )
    return marginals.PersonalMarginal(mixture, background, strength_of(confirmed.total, weights))


def strength_of(confirmed: float, weights: CombinationWeights) -> float:
    """lambda of eq. 1 for a user who confirmed that many words."""
    share = marginals.confirmed_share(confirmed, STRENGTH_EVIDENCE)
    return marginals.grown_strength(weights.marginal, weights.language_model, share)


def to_bytes(cache: MarginalCache, words: WordList) -> bytes:
    """The cache as JSON by word, for encrypted storage on the device; ``from_bytes`` reads it back, bit for bit."""
    seen = np.flatnonzero((cache.counts > 0) | (cache.pending > 0)).tolist()
    content = {
        "format": FORMAT,
        "words_digest": cache.words_digest,
        "listed": {words[word]: [cache.counts[word], cache.pending[word]] for word in seen},
        "unlisted": dict(sorted(cache.unlisted.items())),  # not in the order spoken
        "confirmed": dict(sorted(cache.confirmed.items())),
        "utterances": cache.utterances,
        "pending_utterances": cache.pending_utterances,
    }
    return json.dumps(content).encode()


def from_bytes(data: bytes, words: WordList) -> MarginalCache:
    """Read a stored cache. Raises StateError for damaged bytes. A cache over another word list (a new bundle came) is
    carried over by word: words that left the list are counted as unlisted, unlisted words that joined it get their own
    id. Their weight not reported yet is never reported."""
    with reading("counts/cache"):
        content = json.loads(data)
        listed = {str(word): (float(pair[0]), float(pair[1])) for word, pair in content["listed"].items()}
        unlisted, confirmed = (
            {str(word): float(weight) for word, weight in content.get(name, {}).items()}
            for name in ("unlisted", "confirmed")
        )
        utterances, pending_utterances = int(content["utterances"]), int(content["pending_utterances"])
        digest = str(content["words_digest"])
        weights = [*unlisted.values(), *confirmed.values(), *(weight for pair in listed.values() for weight in pair)]
        if content["format"] != FORMAT or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise ValueError
    counts, pending = np.zeros(len(words)), np.zeros(len(words))
    for word, (weight, new) in listed.items():
        counts[words.id(word)] += weight
        pending[words.id(word)] += new
        if word not in words:
            unlisted[word] = unlisted.get(word, 0.0) + weight
    for word in [word for word in unlisted if word in words]:
        counts[words.id(word)] += unlisted.pop(word)
    counts[0] = pending[0] = 0.0
    if digest != words.digest:
        pending = np.minimum(pending, counts)
    return MarginalCache(words.digest, counts, pending, unlisted, utterances, pending_utterances, confirmed)


def _add(cache: MarginalCache, counts: UtteranceCounts, sign: int, due: bool) -> MarginalCache:
    total, pending = cache.counts.copy(), cache.pending.copy()
    for word_id, weight in counts.listed.items():
        for array in (total, pending) if due else (total,):
            array[word_id] = max(0.0, array[word_id] + sign * weight)
    return replace(
        cache,
        counts=total,
        pending=np.minimum(pending, total),
        unlisted=_recounted(cache.unlisted, counts.unlisted, sign),
        confirmed=_recounted(cache.confirmed, dict.fromkeys(counts.confirmed, 1.0), sign),
        utterances=max(0, cache.utterances + sign),
        pending_utterances=max(0, cache.pending_utterances + (sign if due else 0)),
    )


def _recounted(before: Mapping[str, float], change: Mapping[str, float], sign: int) -> Mapping[str, float]:
    if not change:
        return before
    found = dict(before)
    for word, weight in change.items():
        remaining = found.get(word, 0.0) + sign * weight
        if remaining > 1e-12:
            found[word] = remaining
        else:
            found.pop(word, None)
    if len(found) <= UNLISTED_LIMIT:
        return found
    return {word: found[word] for word in sorted(found, key=lambda word: (-found[word], word))[:UNLISTED_LIMIT]}


@dataclass(frozen=True, slots=True)
class UtteranceCounts:
    """Weighted counts of one utterance (the sum of eq. 4 over one n-best list). listed: word id -> weight.
    unlisted: word -> weight. confirmed: phrases that the user confirmed."""

    listed: Mapping[int, float]
    unlisted: Mapping[str, float] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()


def count_words(texts: Sequence[str], words: WordList, weights: CombinationWeights) -> UtteranceCounts:
    """Weighted counts of one utterance (Liu & Peng 2020, eq. 3 and the sum of eq. 4). texts: the n-best list's, best
    first; one text (a correction, say) counts fully."""
    listed: dict[int, float] = {}
    unlisted: dict[str, float] = {}
    shares = marginals.nbest_kernel(len(texts), weights.sigma).tolist()
    for text, share in zip(texts, shares, strict=True):
        for word, word_id in zip(text.split(), words.ids(text), strict=True) if share > 0 else ():
            if word_id:
                listed[word_id] = listed.get(word_id, 0.0) + share
            else:
                unlisted[word] = unlisted.get(word, 0.0) + share
    return UtteranceCounts(listed, unlisted)


def confirmed_texts(texts: Sequence[str], signal: Signal) -> tuple[str, ...] | None:
    """The texts to count, best first, in place of an n-best list; None leaves the list's own counts. texts: the n-best
    list as served. ``Accepted``, ``Alternate``, a ``Rating`` of 1/2 or more: None. ``Cancelled``, ``Repeated``, a lower
    ``Rating``: nothing is counted. ``Corrected``: the correction. ``Semantics``: the entries with every slot right, in
    their order; else the closest repair of an entry (``device_sdk.feedback.repair``), or else the entries with the
    fewest slot errors. Of several signals a correction decides, then semantics, then the rest."""
    if not texts:
        return None
    said = parts(signal)
    match next((each for kind in (Corrected, Semantics) for each in said if isinstance(each, kind)), said[0]):
        case Corrected(text=text):
            return (text,)
        case Semantics() as semantics:
            return _with_right_slots(texts, semantics)
        case Rating(value=value):
            return None if value >= 0.5 else ()
        case Accepted() | Alternate():
            return None
        case Cancelled() | Repeated():
            return ()


def confirmed_phrases(texts: Sequence[str], signal: Signal) -> frozenset[str]:
    """What feedback confirms: the words of a correction, or else the values of slots, which alone are known to be
    right, the short ones as phrases, or else the words of what the user went on with. texts: the n-best list as
    served."""
    said = parts(signal)
    match next((each for kind in (Corrected, Semantics, Accepted) for each in said if isinstance(each, kind)), None):
        case Corrected(text=text):
            return frozenset(text.split())
        case Semantics(slots=slots):
            return frozenset(phrase for value in slots.values() for phrase in _as_phrases(value))
        case Accepted() if texts and all(isinstance(each, Accepted) for each in said):
            return frozenset(texts[0].split())
    return frozenset()


def _as_phrases(value: str) -> Sequence[str]:
    """A value of a slot: whole where it is short. Messages and notes are not kept as they were said."""
    words = value.split()
    return [value] if len(words) <= LONGEST_VALUE else words


def _with_right_slots(texts: Sequence[str], signal: Semantics) -> tuple[str, ...]:
    costs = [slot_cost(text, signal.slots, signal.lexicon, signal.mode) for text in texts]
    if min(costs) > 0:
        repaired = repair(texts, signal.slots, signal.lexicon, limit=1)
        if repaired:
            return repaired
    return tuple(text for text, cost in zip(texts, costs, strict=True) if cost == min(costs))
