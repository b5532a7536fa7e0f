"""What a device counts of what it recognizes and of what feedback says: words, the words it may name, its channel."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import StateError
from device_sdk.features import channel as channels
from device_sdk.feedback.signals import Signal, combined
from device_sdk.hypothesis import Hypothesis
from device_sdk.learning.memory import Example, Recent
from device_sdk.model_state import ModelState
from device_sdk.personalization import cache as caches
from device_sdk.personalization.counts import UtteranceCounts, confirmed_texts, heard
from device_sdk.personalization.given import given_words, regiven
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.settings import DeviceSettings

__all__ = ["Counting"]

log = logging.getLogger(__name__)


class Counting:
    """Counts into a model state, and owns the marginal made of it. Every call is made under the store's guard."""

    def __init__(self, model_state: ModelState, rescorer: Rescorer, settings: DeviceSettings) -> None:
        self._model_state, self._rescorer, self._settings = model_state, rescorer, settings
        self._marginal: tuple[caches.MarginalCache, NDArray[np.float64] | None, NDArray[np.float64]] | None = None

    @property
    def words(self) -> bool:
        """Whether words are counted: settings and user allow it."""
        uses = self._settings.use_marginals or self._settings.share_marginals
        return uses and self._model_state.consent.counting

    @property
    def names(self) -> bool:
        """Whether words that the user gives may be named."""
        return self._settings.share_words and self._model_state.consent.words

    def marginal(self) -> NDArray[np.float64]:
        """Of what the user and everybody says -> [n], computed again only after one of them changed."""
        cache, shared = self._model_state.cache, self._model_state.marginals
        if self._marginal is None or self._marginal[0] is not cache or self._marginal[1] is not shared:
            marginal = caches.marginal(cache, self._model_state.base.background, shared, self._rescorer.weights)
            self._marginal = cache, shared, marginal
        return self._marginal[2]

    def counts_of(self, nbest: Sequence[Hypothesis]) -> UtteranceCounts:
        """What an utterance that was recognized just now adds to the counts."""
        texts, scores = [hypothesis.text for hypothesis in nbest], [hypothesis.score for hypothesis in nbest]
        return heard(texts, self._model_state.base.words, self._rescorer.weights, scores)

    def count(self, nbest: Sequence[Hypothesis]) -> UtteranceCounts:
        """Counts an utterance. Where the disk fails it is counted in memory, and written with the next one."""
        model_state, counts = self._model_state, self.counts_of(nbest)
        cache = caches.update(model_state.cache, counts, model_state.consent.marginals)
        try:
            model_state.keep_cache(cache)
        except StateError as error:  # the user still gets the result
            log.warning("an utterance is counted in memory only: %s", error)
            model_state.cache = cache
        return counts

    def recount(self, example: Example, signal: Signal, recent: Recent) -> None:
        """Counts an utterance and the words that it gives anew, by its feedback so far and ``signal``."""
        model_state, known = self._model_state, combined(example.signal, signal)
        words = model_state.base.words
        if example.given is not None and self.names:
            given = given_words(known, words)
            if given != example.given:
                model_state.keep_given(regiven(model_state.given, example.given, given))
                recent.regive(example.utterance_id, given)
        if example.counts is None or not self.words:
            return
        texts = [hypothesis.text for hypothesis in example.nbest]
        confirmed = confirmed_texts(texts, known)
        said = texts if confirmed is None else confirmed
        by_text = {hypothesis.text: hypothesis.score for hypothesis in reversed(example.nbest)}
        scores = [by_text[text] for text in said] if by_text.keys() >= set(said) else None
        counts = heard(said, words, self._rescorer.weights, scores)
        if counts != example.counts:
            due = not example.reported  # what was reported once is not reported again
            cache = caches.withdraw(model_state.cache, example.counts, due)
            model_state.keep_cache(caches.update(cache, counts, due))
            recent.recount(example.utterance_id, counts)

    def listen(self, features: NDArray[np.float32]) -> None:
        """Adds frames [F, M], as the microphone gave them, to the channel."""
        model_state, settings = self._model_state, self._settings.channel
        assert settings is not None
        form = model_state.base.features
        channel = channels.heard(model_state.channel, features, len(features) * form.shift / form.sample_rate, settings)
        try:
            model_state.keep_channel(channel)
        except StateError as error:
            log.warning("the channel is remembered in memory only: %s", error)
            model_state.channel = channel

    def offset(self) -> NDArray[np.float32] | None:
        """What is subtracted from every frame of the next utterance, [M]; None where channels are not removed."""
        model_state, settings = self._model_state, self._settings.channel
        if settings is None:
            return None
        return channels.offset(model_state.channel, model_state.base.weights["features.mean"], settings)
