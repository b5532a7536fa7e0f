"""Every speaker's device, simulated on development lists: what it recognizes with all that it has heard before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.personalization import cache as caches
from rescoring.combination import CombinationWeights, order
from rescoring.marginals import adaptation, personal_scores, personal_unigram, weighted_counts
from rescoring.words import WordList
from server.lab.tuning.lists import DevelopmentLists

__all__ = ["marginal_errors", "others_marginals"]

Array = NDArray[np.float64]


def marginal_errors(
    lists: DevelopmentLists,
    weights: CombinationWeights,
    words: WordList,
    background: Array,
    others: Mapping[str, Array] | None = None,
) -> NDArray[np.int64]:
    """Word errors of each utterance [U] when every speaker's device adapts to what it recognized before.

    Predict, then learn: an utterance is rescored with its speaker's cache as it was, then counted as the device counts
    it: by its n-best list in the order of the second pass or, where slots are labelled, by what they confirm.
    others: speaker -> the global distribution [n] (``others_marginals``); the background where there is none: a lone
    device.
    """
    held: dict[str, caches.MarginalCache] = {}
    found = np.zeros(len(lists), dtype=np.int64)
    for index, speaker in enumerate(lists.speakers):
        cache = held.get(speaker, caches.empty(words))
        marginal = caches.marginal(cache, background, (others or {}).get(speaker), weights)
        factors = adaptation(marginal, background, weights.marginal)
        totals = lists.adapted(index, weights, personal_scores(lists.ids[index], factors))
        ranking = order(totals)
        found[index] = lists.errors[index, ranking[0]]
        held[speaker] = _heard(lists, index, weights, cache, words, ranking, totals)
    return found


def others_marginals(
    lists: DevelopmentLists, weights: CombinationWeights, words: WordList, background: Array
) -> dict[str, Array]:
    """speaker -> what a server would publish of the other speakers of its source (Liu & Peng 2020, eq. 6, without
    noise).

    Counted by rank in the order of the second pass without adaptation. Who is alone in a source is left out.
    """
    totals, counts = lists.totals(weights), dict[tuple[str, str], Array]()
    for index, place in enumerate(zip(lists.sources, lists.speakers, strict=True)):
        ranking = order(totals[index, : len(lists.ids[index])])
        said = weighted_counts([lists.ids[index][entry] for entry in ranking], weights.sigma, len(words))
        counts[place] = counts.get(place, np.zeros(len(words))) + said
    found = {}
    for source, speaker in counts:
        rest = [each for place, each in counts.items() if place[0] == source and place[1] != speaker]
        if rest:
            found[speaker] = personal_unigram(np.sum(rest, axis=0), background, weights.smoothing)
    return found


def _heard(
    lists: DevelopmentLists,
    index: int,
    weights: CombinationWeights,
    cache: caches.MarginalCache,
    words: WordList,
    ranking: list[int],
    totals: Array,
) -> caches.MarginalCache:
    """The cache after the utterance, as a device has it once feedback came."""
    nbest = {lists.texts[index][entry]: float(totals[entry]) for entry in ranking}
    counts = caches.heard(list(nbest), words, weights, list(nbest.values()))
    held = caches.update(cache, counts)
    said = lists.confirmed[index]
    if said is None:
        return held
    scores = [nbest[text] for text in said] if nbest.keys() >= set(said) else None
    mended = caches.heard(said, words, weights, scores)
    return held if mended == counts else caches.update(caches.withdraw(held, counts), mended)
