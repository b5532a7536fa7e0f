"""What becomes of an utterance: it is counted, remembered for feedback and learning, and kept where that is allowed."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from device_sdk.counting import Counting
from device_sdk.decoding.spellings import Spellings
from device_sdk.errors import StateError
from device_sdk.feedback.repetition import carried_back, is_repetition, silence
from device_sdk.feedback.signals import Repeated, Signal
from device_sdk.hypothesis import Result
from device_sdk.learning.kept import Kept
from device_sdk.learning.memory import Example, Recent, utterances
from device_sdk.model_state import ModelState
from device_sdk.settings import DeviceSettings

__all__ = ["Utterances"]

log = logging.getLogger(__name__)


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
        offset: NDArray[np.float32] | None = None,
        spellings: Spellings | None = None,
    ) -> None:
        """Counts and remembers a result; features [F, M], with ``offset`` [M] subtracted."""
        with self._model_state.store.guard:
            self.kept.tidy()
            if self._settings.channel is not None and self.learning and result.text:
                self._counting.listen(features if offset is None else features + offset)
            counts = self._counting.count(result.nbest) if self._counting.words else None
            before = self.recent.latest()
            again = before is not None and before.signal is None and self._repeats(before, result)
            repeats = before.utterance_id if before is not None and again else None
            if self.learning and len(features) >= self._model_state.base.architecture.subsampling_factor:
                remembered = features
            elif (self._counting.words or self._counting.names) and not self.learning:
                remembered = features[:0]  # feedback mends the counts and gives words; that needs no features
            else:
                return
            self.recent.add(
                result.utterance_id,
                remembered,
                result.nbest,
                counts,
                reported=not self._model_state.consent.marginals,
                probability=result.probability,
                repeats=repeats,
                nameable=self._counting.names,
                spellings=spellings,
            )
            if self._settings.keep_heard:
                try:
                    self._keep(result.utterance_id)
                except StateError as error:
                    log.warning("an utterance waits for feedback in memory only: %s", error)
            log.debug("heard: %s in memory", utterances(len(self.recent)))
            if repeats is not None:
                try:
                    self.note(repeats, Repeated(tuple(hypothesis.text for hypothesis in result.nbest)))
                except StateError as error:
                    log.warning("a repeated utterance stays counted: %s", error)

    def _repeats(self, before: Example, result: Result) -> bool:
        """Whether the user has just repeated the utterance before."""
        words = result.nbest[0].words
        delay = silence(self.recent.seconds_since(before), result.seconds, words[0].start if words else 0.0)
        first, second = ([hypothesis.text for hypothesis in each.nbest] for each in (before, result))
        return is_repetition(first, second, delay, self._settings.repetition)

    def note(self, utterance_id: str, signal: Signal) -> None:
        """Feedback, under the guard: to an utterance, its counts and words, and the one that it repeats."""
        example = self.recent.mark(utterance_id, signal)
        self._counting.recount(example, signal, self.recent)
        self._keep(utterance_id)
        told = carried_back(signal, example.nbest[0].text)
        if example.repeats is not None and told is not None and self.recent.get(example.repeats) is not None:
            self.note(example.repeats, told)

    def _keep(self, utterance_id: str) -> None:
        self.kept.update(utterance_id, self.keeping, self._model_state.handed_on())
