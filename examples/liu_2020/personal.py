"""What one device of the simulation knows of its user, and how an utterance changes it: eq. 1 to 5 of Liu & Peng 2020.

The equations and the extensions are :mod:`rescoring`'s own, chosen by the same weights as on a device; what is spared
is all that a device does besides, so that a table of many thousand utterances takes minutes. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.scores import Heard
from rescoring import ngrams
from rescoring.combination import CombinationWeights
from rescoring.marginals import adaptation, decay, interpolated_marginal, nbest_weights, personal_unigram
from rescoring.spelling import LetterModel, own_word_gain
from rescoring.strength import GRID, best_strength, predictive_gains

__all__ = ["Adaptation", "Method", "Personal", "Shipped", "adaptation_of", "begin", "learned", "rescored"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to adapt: the weights of a device, and whose order eq. 3 goes by: the ``first`` pass' as in Liu & Peng
    2020, or the ``second``'s as on a device. ``errors`` counts the entry with the fewest word errors alone: a
    yardstick, for which somebody would have to know what was said."""

    weights: CombinationWeights
    ranks: Literal["first", "second", "errors"] = "first"


@dataclass(frozen=True, slots=True)
class Shipped:
    """What every device begins with. background: u [n], positive. letters: how words outside the list are spelled."""

    background: Array
    letters: LetterModel


@dataclass(frozen=True, slots=True)
class Personal:
    """counts: weighted word counts so far [n] (the sum of eq. 4). recent: the same where older ones weigh less [n].
    pending: of the utterances since the last report [n]. ngrams, unlisted: word sequences, and words outside the list,
    with their weights. evidence: what each lambda of :data:`rescoring.strength.GRID` would have gained, nats."""

    counts: Array
    recent: Array
    pending: Array
    ngrams: ngrams.NgramCounts = field(default_factory=ngrams.NgramCounts)
    unlisted: Mapping[str, float] = field(default_factory=dict)
    evidence: Array = field(default_factory=lambda: np.zeros(len(GRID)))


@dataclass(frozen=True, slots=True)
class Adaptation:
    """marginal: g of eq. 2 [n]. factors: log of eq. 1's factor of each word [n], nats."""

    marginal: Array
    factors: Array


def begin(words: int) -> Personal:
    """A device that has heard nothing. words: n."""
    return Personal(np.zeros(words), np.zeros(words), np.zeros(words))


def reported(known: Personal) -> Personal:
    """After the pending counts went into a report."""
    return replace(known, pending=np.zeros_like(known.pending))


def adaptation_of(known: Personal, shipped: Shipped, global_: Array | None, weights: CombinationWeights) -> Adaptation:
    """Equations 1, 2 and 4 for what a device knows. global_: what the server published last [n], or None."""
    counts = known.recent if weights.half_life else known.counts
    if weights.refresh == "round":
        counts = np.maximum(counts - known.pending, 0.0)
    own = personal_unigram(counts, shipped.background, weights.smoothing)
    g = interpolated_marginal(shipped.background, global_, own, weights.alpha, weights.beta)
    strength = best_strength(known.evidence, weights.marginal) if weights.automatic else weights.marginal
    return Adaptation(g, adaptation(g, shipped.background, strength))


def rescored(
    heard: Heard, known: Personal, adapted: Adaptation, shipped: Shipped, weights: CombinationWeights
) -> Array:
    """Scores of the second pass with all that is personal [N], nats."""
    personal, letters = heard.personal(adapted.factors), np.zeros(len(heard.ids))
    if weights.context:
        found = ngrams.context_scores(
            heard.ids, known.ngrams, adapted.marginal, weights.context_smoothing, weights.context_order
        )
        personal = personal + weights.context * found
    if weights.spelling and heard.unlisted.any():
        spelling, own = _spelled(heard, known, shipped.letters, weights.own_words)
        personal = personal + weights.spelling * own
        letters = weights.spelling * spelling
    return heard.total(weights, personal, letters)


def learned(
    known: Personal, heard: Heard, scores: Array, adapted: Adaptation, shipped: Shipped, how: Method
) -> Personal:
    """The device after one more utterance, of which nothing but its own n-best list is known (eq. 3 and 4).

    scores: of the second pass [N]. adapted: by which they came about.
    """
    weights = how.weights
    shares = counted(scores, how) if how.ranks != "errors" else np.eye(len(scores))[heard.errors.argmin()]
    found: Array = np.bincount(heard.flat, shares[heard.owner], minlength=len(known.counts)).astype(np.float64)
    left = decay(weights.half_life)
    state = replace(
        known, counts=known.counts + found, recent=left * known.recent + found, pending=known.pending + found
    )
    if weights.context:
        said = ngrams.ngram_weights(heard.ids, shares.tolist(), weights.context_order)
        state = replace(state, ngrams=ngrams.add(known.ngrams, said, decay=left))
    if weights.own_words:
        state = replace(state, unlisted=_unlisted(known.unlisted, heard, shares))
    if weights.automatic:
        evidence = known.evidence + predictive_gains(found, adapted.marginal, shipped.background)
        state = replace(state, evidence=evidence)
    return state


def counted(scores: Array, how: Method) -> Array:
    """What each hypothesis counts [N], in the list's order: eq. 3's kernel of its rank, or its posterior."""
    weights = how.weights
    if how.ranks == "first" and not weights.posterior_scale:
        return nbest_weights(len(scores), weights.sigma)
    order = np.argsort(-scores, kind="stable")
    shares = np.empty(len(scores))
    shares[order] = nbest_weights(len(scores), weights.sigma, scores[order], weights.posterior_scale)
    return shares


def _spelled(heard: Heard, known: Personal, letters: LetterModel, share: float) -> tuple[Array, Array]:
    """(log-probability of the letters of unlisted words, what the user's own of them add) of each hypothesis [N]."""
    said = sum(known.unlisted.values())
    scores = {word: letters.score(word) for words in heard.spelled for word in words}
    own = {word: own_word_gain(score, known.unlisted.get(word, 0.0), said, share) for word, score in scores.items()}
    return (
        np.array([sum(scores[word] for word in words) for words in heard.spelled], np.float64),
        np.array([sum(own[word] for word in words) for words in heard.spelled], np.float64),
    )


def _unlisted(held: Mapping[str, float], heard: Heard, shares: Array) -> Mapping[str, float]:
    found = dict(held)
    for words, share in zip(heard.spelled, shares.tolist(), strict=True):
        for word in words:
            found[word] = found.get(word, 0.0) + share
    return found
