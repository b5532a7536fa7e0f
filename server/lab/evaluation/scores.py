"""Errors of a recognizer on a corpus: words, slots, the best of its n-best lists, and its speed.

All rates are micro-averaged: errors over all utterances divided by words (or true slots) over all utterances."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import jiwer

from device_sdk.errors import ConfigurationError, DataError
from device_sdk.feedback.distance import edit_distance
from device_sdk.feedback.slots import SlotLexicon, slot_cost
from device_sdk.hypothesis import Hypothesis, Result
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform
from server.lab.evaluation.reliability import Reliability
from server.lab.statistics import Difference, paired_bootstrap

ORACLE_DEPTHS = (1, 4, 8)
"""Lengths of the n-best lists for which the best entry's word error is reported."""

FEW_SPEAKERS = 5
"""With fewer speakers than this, utterances are resampled: the interval then speaks of these speakers only."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors in one utterance. words, word_errors, oracle_errors (depth -> errors of the best entry), text_confidence
    (of the best hypothesis, with whether it was right): None where the corpus's words do not count. word_confidences:
    the same of its words, none then. slots, slot_errors: None without slot labels. audio_seconds, seconds: length of
    the audio, and time that recognizing it took."""

    id: str
    speaker: str
    words: int | None
    word_errors: int | None
    oracle_errors: Mapping[int, int] | None
    slots: int | None
    slot_errors: int | None
    audio_seconds: float
    seconds: float
    word_confidences: tuple[tuple[float, bool], ...] = ()
    text_confidence: tuple[float, bool] | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a corpus, in its order."""

    scores: tuple[Score, ...]

    @property
    def wer(self) -> float | None:
        """Word errors over words of the reference."""
        return _rate((score.word_errors, score.words) for score in self.scores)

    @property
    def slot_error(self) -> float | None:
        """Wrong, missing and extra slots over true slots."""
        return _rate((score.slot_errors, score.slots) for score in self.scores)

    def oracle_wer(self, depth: int) -> float | None:
        """Word error if the best of the first ``depth`` hypotheses were always chosen."""
        return _rate((score.oracle_errors and score.oracle_errors[depth], score.words) for score in self.scores)

    @property
    def real_time_factor(self) -> float | None:
        """Time taken over length of the audio; below 1 is faster than speech."""
        audio = sum(score.audio_seconds for score in self.scores)
        return sum(score.seconds for score in self.scores) / audio if audio > 0 else None

    def words(self) -> Reliability | None:
        """Confidence of recognized words against whether they were said; None without any. Words that were left out
        have no confidence, so deletions do not count."""
        return Reliability.of(chain.from_iterable(score.word_confidences for score in self.scores))

    def texts(self) -> Reliability | None:
        """Confidence of the first hypothesis against whether all of it was right."""
        return Reliability.of(score.text_confidence for score in self.scores if score.text_confidence is not None)

    def of_speakers(self) -> dict[str, Evaluation]:
        """The same, speaker by speaker, sorted."""
        speakers = sorted({score.speaker for score in self.scores})
        return {name: Evaluation(tuple(row for row in self.scores if row.speaker == name)) for name in speakers}

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths for which oracle errors are known."""
        return next((tuple(row.oracle_errors) for row in self.scores if row.oracle_errors is not None), ORACLE_DEPTHS)

    def as_json(self) -> dict[str, Any]:
        """``wer``, ``slot_error``, ``oracle_wer`` by depth, ``real_time_factor``, ``utterances``, ``confidence``; null
        without labels."""
        words, texts = self.words(), self.texts()
        return {
            "wer": self.wer,
            "slot_error": self.slot_error,
            "oracle_wer": {str(depth): self.oracle_wer(depth) for depth in self.depths},
            "real_time_factor": self.real_time_factor,
            "utterances": len(self.scores),
            "confidence": {
                "words": None if words is None else words.as_json(),
                "texts": None if texts is None else texts.as_json(),
            },
        }


def evaluate(
    recognize: Callable[[Waveform], Result],
    corpus: Corpus,
    progress: Callable[[Score], None] | None = None,
    depths: Sequence[int] = ORACLE_DEPTHS,
) -> Evaluation:
    """Recognizes every utterance of a corpus and scores it. recognize: float32 waveform [S] at 16 kHz -> its n-best
    list; only this call is timed. progress: called after each utterance. depths: for oracle errors. Raises DataError
    for an empty corpus or audio that cannot be read."""
    if not corpus.utterances:
        raise DataError(f"{corpus.name}: no utterances to evaluate")
    scores = []
    for utterance in corpus.utterances:
        waveform = utterance.load()
        start = time.perf_counter()
        nbest = recognize(waveform).nbest
        seconds = time.perf_counter() - start
        scores.append(score(utterance, nbest, corpus.lexicon, waveform.size / SAMPLE_RATE, seconds, depths))
        if progress is not None:
            progress(scores[-1])
    return Evaluation(tuple(scores))


def score(
    utterance: Utterance,
    nbest: Sequence[Hypothesis],
    lexicon: SlotLexicon | None,
    audio_seconds: float = 0.0,
    seconds: float = 0.0,
    depths: Sequence[int] = ORACLE_DEPTHS,
) -> Score:
    """The errors of an n-best list, best first, against an utterance's labels. lexicon: to read slots with; None leaves
    slots out. Raises DataError where the list is empty."""
    if not nbest:
        raise DataError(f"utterance {utterance.id!r}: an empty n-best list; expected at least one hypothesis")
    best, known, labels = nbest[0], utterance.sure_text, utterance.slots if lexicon is not None else None
    errors, sure = list[int](), list[tuple[float, bool]]()
    if known is not None:
        errors = [word_errors(known, hypothesis.text) for hypothesis in nbest]
        right = right_words(known, " ".join(word.text for word in best.words))
        sure = [(word.confidence, hit) for word, hit in zip(best.words, right, strict=True)]
    return Score(
        id=utterance.id,
        speaker=utterance.speaker,
        words=None if known is None else len(known.split()),
        word_errors=errors[0] if errors else None,
        oracle_errors={depth: min(errors[:depth]) for depth in depths} if errors else None,
        slots=None if labels is None else len(labels),
        slot_errors=slot_cost(best.text, labels, lexicon) if labels is not None and lexicon is not None else None,
        audio_seconds=audio_seconds,
        seconds=seconds,
        word_confidences=tuple(sure),
        text_confidence=(best.confidence, errors[0] == 0) if errors else None,
    )


def differences(first: Evaluation, second: Evaluation, what: Literal["words", "slots"] = "words") -> Difference | None:
    """The paired bootstrap of ``second`` against ``first``, which list the same utterances in the same order. Speakers
    are resampled, or utterances where there are fewer than ``FEW_SPEAKERS``. None where nothing is labelled or
    ``first`` makes no error. Raises ConfigurationError for evaluations of different utterances."""
    if [row.id for row in first.scores] != [row.id for row in second.scores]:
        raise ConfigurationError("comparison: the two evaluations list other utterances; evaluate the same corpus")
    errors = attrgetter("word_errors" if what == "words" else "slot_errors")
    rows = [(errors(a), errors(b), getattr(a, what), a) for a, b in zip(first.scores, second.scores, strict=True)]
    rows = [row for row in rows if None not in row[:3]]
    if not sum(row[0] for row in rows) or not sum(row[2] for row in rows):
        return None
    ours, theirs, sizes, scores = zip(*rows, strict=True)
    few = len({row.speaker for row in scores}) < FEW_SPEAKERS
    return paired_bootstrap(ours, theirs, sizes, [row.id if few else row.speaker for row in scores])


def word_errors(reference: str, hypothesis: str) -> int:
    """Substitutions, deletions and insertions."""
    return edit_distance(reference.split(), hypothesis.split())


def right_words(reference: str, hypothesis: str) -> list[bool]:
    """For each word of the hypothesis, whether jiwer's alignment matches it with an equal word of the reference."""
    right = [False] * len(hypothesis.split())
    if right and reference.split():
        for chunk in jiwer.process_words(reference, hypothesis).alignments[0]:
            if chunk.type == "equal":
                right[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (chunk.hyp_end_idx - chunk.hyp_start_idx)
    return right


def _rate(pairs: Any) -> float | None:
    counted = [(errors, total) for errors, total in pairs if errors is not None and total is not None]
    denominator = sum(total for _, total in counted)
    return sum(errors for errors, _ in counted) / denominator if denominator > 0 else None
