"""What one device of the simulation knows of its user, and how an utterance changes it: eq. 1 to 5 of Liu & Peng 2020.

The equations and the extensions are :mod:`rescoring`'s own, chosen by the same weights as on a device; what is spared
is all that a device does besides, so that a table of many thousand utterances takes minutes. A test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.scores import Heard
from rescoring.combination import CombinationWeights
from rescoring.marginals import adaptation, interpolated_marginal, nbest_weights, personal_unigram

__all__ = ["Method", "Personal", "Shipped", "adaptation_of", "begin", "learned"]

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
    """What every device begins with. background: u [n], positive."""

    background: Array


@dataclass(frozen=True, slots=True)
class Personal:
    """counts: weighted word counts so far [n] (the sum of eq. 4). pending: of the utterances since the last
    report [n]."""

    counts: Array
    pending: Array


def begin(words: int) -> Personal:
    """A device that has heard nothing. words: n."""
    return Personal(np.zeros(words), np.zeros(words))


def reported(known: Personal) -> Personal:
    """After the pending counts went into a report."""
    return replace(known, pending=np.zeros_like(known.pending))


def adaptation_of(known: Personal, shipped: Shipped, global_: Array | None, weights: CombinationWeights) -> Array:
    """Equations 1, 2 and 4 for what a device knows: log of eq. 1's factor of each word [n], nats. global_: what the
    server published last [n], or None."""
    counts = known.counts
    if weights.refresh == "round":
        counts = np.maximum(counts - known.pending, 0.0)
    own = personal_unigram(counts, shipped.background, weights.smoothing)
    g = interpolated_marginal(shipped.background, global_, own, weights.alpha, weights.beta)
    return adaptation(g, shipped.background, weights.marginal)


def learned(known: Personal, heard: Heard, scores: Array, how: Method) -> Personal:
    """The device after one more utterance, of which nothing but its own n-best list is known (eq. 3 and 4).

    scores: of the second pass [N].
    """
    shares = counted(scores, how) if how.ranks != "errors" else np.eye(len(scores))[heard.errors.argmin()]
    found: Array = np.bincount(heard.flat, shares[heard.owner], minlength=len(known.counts)).astype(np.float64)
    return replace(known, counts=known.counts + found, pending=known.pending + found)


def counted(scores: Array, how: Method) -> Array:
    """What each hypothesis counts [N], in the list's order: eq. 3's kernel of its rank, or its posterior."""
    weights = how.weights
    if how.ranks == "first" and not weights.posterior_scale:
        return nbest_weights(len(scores), weights.sigma)
    order = np.argsort(-scores, kind="stable")
    shares = np.empty(len(scores))
    shares[order] = nbest_weights(len(scores), weights.sigma, scores[order], weights.posterior_scale)
    return shares
