"""Every speaker's device, simulated on development lists: what it recognizes with all that it has heard before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.personalization import cache as caches
from rescoring.combination import CombinationWeights
from rescoring.confirmation import confirmation
from rescoring.marginals import adaptation, personal_scores, personal_unigram, weighted_counts
from rescoring.nbest import order
from rescoring.ngrams import context_scores
from rescoring.spelling import LetterModel, own_word_gain
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
        totals = lists.adapted(index, weights, _personal(lists, index, weights, cache, marginal, background))
        ranking = order(totals)
        found[index] = lists.errors[index, ranking[0]]
        held[speaker] = _heard(lists, index, weights, cache, words, ranking, totals, (marginal, background))
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


def _personal(
    lists: DevelopmentLists,
    index: int,
    weights: CombinationWeights,
    cache: caches.MarginalCache,
    marginal: Array,
    background: Array,
) -> Array:
    """What the user's own speech adds to the language model's score of each entry."""
    factors = adaptation(marginal, background, caches.strength(cache, weights))
    if weights.confirmed and cache.told is not None and cache.guessed is not None:
        factors = factors + confirmation(cache.told, cache.guessed, weights.confirmed, weights.confirmed_smoothing)
    scores, ids = personal_scores(lists.ids[index], factors), lists.ids[index]
    if weights.context:
        gains = context_scores(ids, cache.ngrams, marginal, weights.context_smoothing, weights.context_order)
        scores = scores + weights.context * gains
    if weights.spelling and weights.own_words and cache.unlisted:
        scores = scores + weights.spelling * _own_words(lists, index, weights.own_words, cache.unlisted)
    return scores


def _own_words(lists: DevelopmentLists, index: int, share: float, unlisted: Mapping[str, float]) -> Array:
    letters: LetterModel = lists.letters
    said = sum(unlisted.values())
    return np.array(
        [
            sum(
                own_word_gain(letters.score(word), unlisted.get(word, 0.0), said, share)
                for word, word_id in zip(text.split(), ids, strict=True)
                if word_id == 0
            )
            for text, ids in zip(lists.texts[index], lists.ids[index], strict=True)
        ]
    )


def _heard(
    lists: DevelopmentLists,
    index: int,
    weights: CombinationWeights,
    cache: caches.MarginalCache,
    words: WordList,
    ranking: list[int],
    totals: Array,
    adapted: tuple[Array, Array],
) -> caches.MarginalCache:
    """The cache after the utterance, as a device has it once feedback came."""
    nbest = {lists.texts[index][entry]: float(totals[entry]) for entry in ranking}
    counts = caches.heard(list(nbest), words, weights, list(nbest.values()), cache.clock)
    told = adapted if weights.automatic else None
    held = caches.update(cache, counts, half_life=weights.half_life, adapted=told)
    said = lists.confirmed[index]
    if said is None:
        return held
    scores = [nbest[text] for text in said] if nbest.keys() >= set(said) else None
    mended = caches.heard(said, words, weights, scores, counts.at)
    if weights.confirmed and said:
        mended = caches.taught(mended, nbest, said, words, weights.confidence.scale)
    if mended == replace(counts, at=mended.at):
        return held
    held = caches.withdraw(held, counts, half_life=weights.half_life)
    return caches.update(held, mended, half_life=weights.half_life)
