"""The user's own n-grams: the "higher order" that Liu & Peng 2020, section 5 leaves to others.

With p_1 = g, the marginal of eq. 2, and counts c of what the user said,

    p_k(w | h) = (c(h w) + m p_{k-1}(w | h')) / (c(h) + m),    h' = h without its first word

so p_k is g where the user never said h, and sums to 1 everywhere. What a word's context adds to log p(w | h) of any
language model is context * log(p_k(w | h) / g(w)), beside eq. 1's lambda * log(g(w) / u(w)). Where w never followed h,
that is a loss of log((c(h) + m) / m) at most.

Words are ids, 0 the bucket of unlisted ones; a sentence begins after the boundary, ``BEGIN``. The end has no marginal
and is not scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["BEGIN", "NgramCounts", "add", "context_scores", "ngram_weights", "probability"]

BEGIN = -1
LIMIT = 20_000
"""N-grams that are kept; beyond it the lightest are forgotten."""
_LARGEST_UNIT = 1e6

Ngram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NgramCounts:
    """Weighted counts of n-grams of two words and more.

    ngrams: words -> weight. contexts: all but the last word of an n-gram -> weight of what followed them.
    unit: what one occurrence weighs now. It grows while older counts stay as they are, which lets them decay.
    """

    ngrams: Mapping[Ngram, float] = field(default_factory=dict)
    contexts: Mapping[Ngram, float] = field(default_factory=dict)
    unit: float = 1.0


def ngram_weights(hypotheses: Sequence[Sequence[int]], weights: Sequence[float], order: int) -> dict[Ngram, float]:
    """N-grams of 2 to ``order`` words over one utterance's n-best list -> weight. hypotheses: word ids of each."""
    found: dict[Ngram, float] = {}
    for words, weight in zip(hypotheses, weights, strict=True):
        if weight > 0:
            for ngram in _ngrams(words, order):
                found[ngram] = found.get(ngram, 0.0) + weight
    return found


def add(counts: NgramCounts, found: Mapping[Ngram, float], sign: float = 1.0, decay: float = 1.0) -> NgramCounts:
    """The counts after ``found`` is added ``sign`` times; what was there before weighs ``decay`` of what it did.

    No count falls below zero.
    """
    unit = counts.unit / decay
    ngrams, contexts = dict(counts.ngrams), dict(counts.contexts)
    for ngram, weight in found.items():
        for table, key in ((ngrams, ngram), (contexts, ngram[:-1])):
            left = table.get(key, 0.0) + sign * unit * weight
            if left > 1e-9 * unit:
                table[key] = left
            else:
                table.pop(key, None)
    if unit > _LARGEST_UNIT or len(ngrams) > LIMIT:
        return _tidied(ngrams, unit)
    return NgramCounts(ngrams, contexts, unit)


def probability(
    counts: NgramCounts, history: Sequence[int], word: int, marginal: float, smoothing: float, order: int
) -> float:
    """p_order(word | history). marginal: g(word); history: the words before, ``BEGIN`` first; smoothing: m > 0."""
    value, added = marginal, smoothing * counts.unit
    for length in range(1, min(order, len(history) + 1)):
        before = tuple(history[-length:])
        heard = counts.contexts.get(before)
        if heard is None:
            break
        value = (counts.ngrams.get((*before, word), 0.0) + added * value) / (heard + added)
    return value


def context_scores(
    sentences: Sequence[Sequence[int]],
    counts: NgramCounts,
    marginal: NDArray[np.float64],
    smoothing: float,
    order: int,
) -> NDArray[np.float64]:
    """Sum over words of log(p_order(w | h) / g(w)) of N sentences -> [N], nats.

    marginal: g of eq. 2, [n], positive; smoothing: m > 0. Raises ValueError for an ``order`` below 2 or no smoothing.
    """
    if order < 2 or not smoothing > 0:
        raise ValueError(f"order, smoothing: found {order!r}, {smoothing!r}; expected 2 or more, and more than 0")
    scores = np.zeros(len(sentences))
    known: dict[Ngram, float] = {}  # entries of a list share most of their words
    for index, words in enumerate(sentences):
        history = [BEGIN]
        for word in words:
            before = tuple(history[1 - order :])
            ngram = (*before, word)
            gain = known.get(ngram)
            if gain is None:
                own = float(marginal[word])
                gain = known[ngram] = math.log(probability(counts, before, word, own, smoothing, order) / own)
            scores[index] += gain
            history.append(word)
    return scores


def _ngrams(words: Sequence[int], order: int) -> Iterator[Ngram]:
    said = (BEGIN, *words)
    for length in range(2, order + 1):
        for start in range(len(said) - length + 1):
            yield said[start : start + length]


def _tidied(ngrams: Mapping[Ngram, float], unit: float) -> NgramCounts:
    """The heaviest n-grams, with a unit of 1; contexts are summed up again."""
    kept = sorted((ngram for ngram in ngrams if ngrams[ngram] > 1e-3 * unit), key=lambda ngram: (-ngrams[ngram], ngram))
    left = {ngram: ngrams[ngram] / unit for ngram in kept[: LIMIT * 9 // 10]}
    contexts: dict[Ngram, float] = {}
    for ngram, weight in left.items():
        contexts[ngram[:-1]] = contexts.get(ngram[:-1], 0.0) + weight
    return NgramCounts(left, contexts)
