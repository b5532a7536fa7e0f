"""The teacher: labels clean features, and follows the student slowly, so that errors do not feed themselves (Rao et
al. 2023, 2.2); and exact scores of hypotheses that its beam did not find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, beam
from device_sdk.decoding.forward import Double, log_likelihoods
from device_sdk.decoding.hotwords import LONGEST_PHRASE, Hotword, Hotwords
from device_sdk.decoding.model import search_guide, search_ngram
from device_sdk.decoding.nbest import distinct
from device_sdk.decoding.stream import decoded, frame_seconds
from device_sdk.hypothesis import Hypothesis
from device_sdk.learning.candidates import Heard
from device_sdk.learning.memory import Example
from device_sdk.learning.objectives import Tokens
from device_sdk.learning.settings import TeacherSettings
from device_sdk.learning.step import Arrays
from device_sdk.runtimes.protocol import Transducer, encode_whole

Opener = Callable[[Bundle], Transducer]

Hearing = tuple[Heard, Callable[[Sequence[Tokens]], Double]]
"""(n-best of an utterance, scorer of other hypotheses of it, nats [N])."""

_KNOWN = 8.0
"""Nats for a phrase that feedback says was meant."""


def follow(teacher: Arrays, student: Arrays, step: int, settings: TeacherSettings) -> Arrays:
    """decay * teacher + (1 - decay) * student after every ``interval`` steps, else the teacher. step: from 1."""
    if step % settings.interval:
        return teacher
    take = np.float32(1.0 - settings.decay)  # shares rounded one by one would not sum to 1, and drift
    return {name: array + take * (student[name] - array) for name, array in teacher.items()}


class Teacher:
    """Owns the session of the teacher's weights; opened again only when they changed."""

    def __init__(self, bundle: Bundle, decoding: DecodingSettings, open_transducer: Opener) -> None:
        self._bundle, self._decoding, self._open = bundle, decoding, open_transducer
        self._opened: tuple[Arrays, Transducer] | None = None
        self._ngram = search_ngram(bundle, decoding)

    def hear(self, weights: Arrays, example: Example, meant: Sequence[str] = ()) -> Hearing:
        """What an utterance's clean features are heard as (Rao et al. 2023, section 2.2), with the phrases that it was
        heard with and the n-gram that users are served with. meant: phrases that feedback says were meant, which are
        likely then."""
        if self._opened is None or self._opened[0] is not weights:
            self._opened = weights, self._open(self._bundle.with_weights(weights, "teacher"))
        transducer, settings, features = self._opened[1], self._decoding, example.features
        factor, frame = self._bundle.architecture.subsampling_factor, frame_seconds(transducer, self._bundle.features)
        usable = len(features) // factor
        features = np.ascontiguousarray(features[: usable * factor])
        tokenizer = self._bundle.tokenizer
        short = [phrase for phrase in meant if len(phrase) <= LONGEST_PHRASE]
        known = [phrase for phrase in short if tokenizer.letters.issuperset(phrase.replace(" ", ""))]
        expected = example.expected
        if known:
            phrases = () if expected is None else expected.phrases
            expected = Hotwords.build([*phrases, *(Hotword(phrase, _KNOWN) for phrase in known)])
        guide = search_guide(expected, tokenizer, self._ngram)
        paths = beam.paths(decoded(features, transducer, frame, settings, guide))
        seconds, spellings = frame * usable, None if expected is None else expected.spellings
        found = distinct(paths, tokenizer, frame, seconds, spellings=spellings)[: settings.nbest]

        def score(hypotheses: Sequence[Tokens]) -> Double:
            return log_likelihoods(transducer, encode_whole(transducer, features), hypotheses)

        return heard_of(found), score


def heard_of(nbest: Sequence[Hypothesis]) -> Heard:
    """An n-best list as learning sees it."""
    texts, tokens = tuple(each.text for each in nbest), tuple(each.tokens for each in nbest)
    scores, totals = tuple(each.scores.acoustic for each in nbest), tuple(each.score for each in nbest)
    return Heard(texts, tokens, scores, totals, tuple(each.confidence for each in nbest))
