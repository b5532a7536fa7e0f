"""What becomes of an utterance: it is counted, remembered for feedback and learning, and kept where that is allowed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding.hotwords import Hotwords
from device_sdk.errors import FeedbackError, StateError
from device_sdk.feedback.repetition import carried_back, is_repetition, silence
from device_sdk.feedback.signals import Corrected, Repeated, Signal, combined, written
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.learning.kept import Kept
from device_sdk.learning.memory import Example, Recent, utterances
from device_sdk.model_state import ModelState
from device_sdk.personalization import cache as caches
from device_sdk.personalization.cache import UtteranceCounts, confirmed_phrases, confirmed_texts, count_words
from device_sdk.personalization.expected import expecting, own_words, said_before
from device_sdk.personalization.given import given_words, recount
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.personalization.vocabulary import VocabularyEntry, corrected
from device_sdk.settings import DeviceSettings
from rescoring.marginals import Counts, PersonalMarginal

log = logging.getLogger(__name__)

EDIT_SECONDS = 3.0
"""A text that was not changed for so long is what its user wants."""


class Utterances:
    """Owns what is remembered of utterances, in memory (``recent``) and on the disk (``kept``)."""

    def __init__(self, model_state: ModelState, counting: Counting, settings: DeviceSettings) -> None:
        self._model_state, self._counting, self._settings = model_state, counting, settings
        self.recent = Recent(settings.memory_utterances, settings.memory_seconds)
        self.kept = Kept(model_state.store, self.recent, heard=settings.keep_heard)
        count = counting.counts_of if counting.words else None
        with model_state.store.guard:
            self.kept.restore(model_state.base, self.keeping, count, model_state.handed_on())

    @property
    def learning(self) -> bool:
        return self._settings.learn and self._model_state.consent.learning

    @property
    def keeping(self) -> bool:
        return self._settings.keep_corrected and self._model_state.consent.keeping and self.learning

    def add(
        self,
        result: Result,
        features: NDArray[np.float32],
        expected: Hotwords | None = None,
        read: bool = False,
    ) -> None:
        """Counts and remembers a result; features: [F, M]; expected: the phrases that it was heard with. read: aloud,
        so that its words are not the user's, and only its sound is learned from."""
        with self._model_state.store.guard:
            self.kept.tidy()
            counts = self._counting.count(result.nbest) if self._counting.words and not read else None
            before, repeats = self.recent.latest(), None
            if before is not None and before.signal is None and not read and self._repeats(before, result):
                repeats = before.utterance_id
            if self.learning and len(features) >= self._model_state.base.architecture.subsampling_factor:
                remembered = features
            elif (self._counting.words or self._counting.names) and not self.learning:
                remembered = features[:0]  # feedback mends the counts and gives words; that needs no features
            else:
                return
            self.recent.add(
                Example(
                    *(result.utterance_id, remembered, result.nbest, counts),
                    reported=not self._model_state.consent.marginals,
                    probability=result.probability,
                    repeats=repeats,
                    given=frozenset() if self._counting.names and not read else None,
                    read=read,
                    expected=expected,
                )
            )
            if self._settings.keep_heard:
                with _surviving("an utterance waits for feedback in memory only"):
                    self._keep(result.utterance_id)
            log.debug("heard: %s in memory", utterances(len(self.recent)))
            if repeats is not None:
                with _surviving("a repeated utterance stays counted"):
                    self.note(repeats, Repeated(tuple(hypothesis.text for hypothesis in result.nbest)))

    def _repeats(self, before: Example, result: Result) -> bool:
        """Whether the user has just repeated the utterance before."""
        words = result.nbest[0].words
        delay = silence(self.recent.seconds_since(before), result.seconds, words[0].start if words else 0.0)
        first, second = ([hypothesis.text for hypothesis in each.nbest] for each in (before, result))
        return is_repetition(first, second, delay, self._settings.repetition)

    def note(self, utterance_id: str, signal: Signal) -> None:
        """Feedback, under the guard: to an utterance, its counts and words, and the one that it repeats."""
        example = self.recent.mark(utterance_id, signal)
        try:
            with self._model_state.together():
                gives = self._settings.use_marginals and self._counting.words and not example.read
                if gives and isinstance(signal, Corrected):
                    self._give(example, signal.text)
                self._counting.recount(example, combined(example.signal, signal), self.recent)
        except BaseException:
            self.recent.put_back(example)  # counted or not, memory says what the disk says
            raise
        self._keep(utterance_id)
        told = carried_back(signal, example.nbest[0].text)
        if example.repeats is not None and told is not None and self.recent.get(example.repeats) is not None:
            self.note(example.repeats, told)

    def settle(self, seconds: float = EDIT_SECONDS) -> None:
        """Texts that were edited and have not changed for so long are corrections; what is none is left alone."""
        for utterance_id, text in self.recent.edited(seconds):
            try:
                self.note(utterance_id, written(Corrected(text), self._model_state.base.tokenizer.letters))
            except FeedbackError as error:
                log.warning("an edited text is no correction, and nothing is learned from it: %s", error)
            except StateError as error:
                log.warning("an edited text waits until it can be written: %s", error)
                self.recent.edit(utterance_id, text)

    def _give(self, example: Example, text: str) -> None:
        """The vocabulary learns the words that a correction gave."""
        state, served = self._model_state, example.nbest[0]
        literal = state.base.tokenizer.decode(served.tokens)
        words, background = state.base.words, state.base.background
        given = example.utterance_id, served.text, literal, text, words, background, time.time()
        state.keep_phrases(corrected(state.phrases, *given))

    def retract(self, utterance_id: str) -> bool:
        """As if there had been no feedback to an utterance, under the guard. Whether it is in memory still."""
        example = self.recent.get(utterance_id)
        if example is None:
            return False
        self._counting.recount(example, None, self.recent)
        self.recent.change(utterance_id, signal=None)
        self._keep(utterance_id)
        return True

    def _keep(self, utterance_id: str) -> None:
        self.kept.update(utterance_id, self.keeping, self._model_state.handed_on())


@contextmanager
def _surviving(what: str) -> Iterator[None]:
    """The user still gets the result where the disk fails, of which the log then says this."""
    try:
        yield
    except StateError as error:
        log.warning("%s: %s", what, error)


_Expected = tuple[Mapping[str, float], Mapping[str, VocabularyEntry], Hotwords | None, Hotwords | None]
"""What phrases were made of, and these."""


class Counting:
    """Counts into a model state, and owns the marginal made of it. Every call is made under the store's guard."""

    def __init__(self, model_state: ModelState, rescorer: Rescorer, settings: DeviceSettings) -> None:
        self._model_state, self._rescorer, self._settings = model_state, rescorer, settings
        self._marginal: tuple[caches.MarginalCache, NDArray[np.float64] | None, PersonalMarginal] | None = None
        self._confirmed: tuple[Mapping[str, float], Counts] | None = None
        self._expected: _Expected | None = None

    @property
    def words(self) -> bool:
        """Whether words are counted: settings and user allow it."""
        uses = self._settings.use_marginals or self._settings.share_marginals
        return uses and self._model_state.consent.counting

    @property
    def names(self) -> bool:
        """Whether words that the user gives may be named."""
        return self._settings.share_words and self._model_state.consent.words

    def marginal(self) -> PersonalMarginal:
        """Of what the user and everybody says, computed again only after one of them changed."""
        cache, shared = self._model_state.cache, self._model_state.marginals
        if self._marginal is None or self._marginal[0] is not cache or self._marginal[1] is not shared:
            base, weights = self._model_state.base, self._rescorer.weights
            if self._confirmed is None or self._confirmed[0] is not cache.confirmed:
                self._confirmed = cache.confirmed, caches.confirmed_counts(cache, base.words)
            marginal = caches.personal_marginal(cache, base.words, base.background, shared, weights, self._confirmed[1])
            self._marginal = cache, shared, marginal
        return self._marginal[2]

    def own_words(self) -> Mapping[str, float]:
        """Words that the user confirmed and others seldom say -> nats that each earns in the first pass."""
        return self._own(caches.word_counts(self._model_state.cache.confirmed))

    def _own(self, confirmed: Mapping[str, float]) -> Mapping[str, float]:
        least = self._rescorer.weights.confirmed if self._settings.use_marginals else 0.0
        return own_words(confirmed, self._model_state.base, least)

    def expected(self, given: Hotwords | None) -> Hotwords | None:
        """What the next utterance expects: the app's phrases for it, the user's vocabulary, and words that the user
        confirmed; made again only after one of them changed."""
        confirmed, known = self._model_state.cache.confirmed, self._model_state.phrases.entries
        if not (known or confirmed):
            return given
        made = self._expected
        if made is None or made[0] is not confirmed or made[1] is not known or made[2] is not given:
            before = None if made is None else made[3]
            words, base = caches.word_counts(confirmed), self._model_state.base
            own = self._own(words)
            found = expecting(given, known.values(), words, own, said_before(confirmed, own, base), base, before)
            self._expected = made = confirmed, known, given, found
        return made[3]

    def counts_of(self, nbest: Sequence[Hypothesis]) -> UtteranceCounts:
        """What an utterance that was recognized just now adds to the counts."""
        return count_words([each.text for each in nbest], self._model_state.base.words, self._rescorer.weights)

    def count(self, nbest: Sequence[Hypothesis]) -> UtteranceCounts:
        """Counts an utterance. Where the disk fails it is counted in memory, and written with the next one."""
        model_state, counts = self._model_state, self.counts_of(nbest)
        cache = caches.update(model_state.cache, counts, model_state.consent.marginals)
        with _surviving("an utterance is counted in memory only"):
            model_state.keep_cache(cache)
        model_state.cache = cache
        return counts

    def recount(self, example: Example, known: Signal | None, recent: Recent) -> None:
        """Counts an utterance and the words that it gives anew, by all ``known`` feedback; None: there is none."""
        model_state = self._model_state
        words = model_state.base.words
        if example.given is not None and self.names:
            given = given_words(known, words) if known is not None else frozenset()
            if given != example.given:
                model_state.keep_given(recount(model_state.given, example.given, given))
                recent.change(example.utterance_id, given=given)
        if example.counts is None or not self.words:
            return
        counts = self.counts_of(example.nbest)
        if known is not None:
            texts = [hypothesis.text for hypothesis in example.nbest]
            said = texts if (confirmed := confirmed_texts(texts, known)) is None else confirmed
            counts = replace(
                count_words(said, words, self._rescorer.weights), confirmed=confirmed_phrases(texts, known)
            )
        if counts != example.counts:
            due = not example.reported  # what was reported once is not reported again
            cache = caches.withdraw(model_state.cache, example.counts, due)
            model_state.keep_cache(caches.update(cache, counts, due))
            recent.change(example.utterance_id, counts=counts)
