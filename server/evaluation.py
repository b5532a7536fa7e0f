"""Errors of a recogniser on a corpus: words, slots, the best of its n-best lists, and its speed.

All rates are micro-averaged: errors over all utterances divided by words (or true slots) over all utterances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jiwer

from device_sdk.errors import DataError
from device_sdk.feedback.slots import CostMode, SlotLexicon, slot_cost
from device_sdk.hypothesis import Result
from server.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform

__all__ = ["ORACLE_DEPTHS", "Evaluation", "Score", "evaluate", "score", "word_errors"]

ORACLE_DEPTHS = (1, 4, 8)
"""Lengths of the n-best lists for which the best entry's word error is reported."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors in one utterance.

    hypothesis: the first text of the list. words, word_errors, oracle_errors (depth -> errors of the best entry): None
    where the corpus's words do not count. slots, slot_errors: None where it has no slot labels. audio_seconds, seconds:
    length of the audio, and time that recognising it took.
    """

    id: str
    speaker: str
    hypothesis: str
    words: int | None
    word_errors: int | None
    oracle_errors: Mapping[int, int] | None
    slots: int | None
    slot_errors: int | None
    audio_seconds: float
    seconds: float


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
        pairs = ((score.oracle_errors and score.oracle_errors[depth], score.words) for score in self.scores)
        return _rate(pairs)

    @property
    def real_time_factor(self) -> float | None:
        """Time taken over length of the audio; below 1 is faster than speech."""
        audio = sum(score.audio_seconds for score in self.scores)
        return sum(score.seconds for score in self.scores) / audio if audio > 0 else None

    def of_speakers(self) -> dict[str, Evaluation]:
        """The same, speaker by speaker, sorted."""
        speakers = sorted({score.speaker for score in self.scores})
        return {name: Evaluation(tuple(row for row in self.scores if row.speaker == name)) for name in speakers}

    def as_json(self) -> dict[str, Any]:
        """``wer``, ``slot_error``, ``oracle_wer`` by depth, ``real_time_factor``, ``utterances``; null without
        labels."""
        return {
            "wer": self.wer,
            "slot_error": self.slot_error,
            "oracle_wer": {str(depth): self.oracle_wer(depth) for depth in ORACLE_DEPTHS},
            "real_time_factor": self.real_time_factor,
            "utterances": len(self.scores),
        }


def evaluate(
    recognise: Callable[[Waveform], Result],
    corpus: Corpus,
    progress: Callable[[Score], None] | None = None,
    mode: CostMode = "strict",
) -> Evaluation:
    """Recognises every utterance of a corpus and scores it.

    recognise: float32 waveform [S] at 16 kHz -> its n-best list; only this call is timed. progress: called after each
    utterance. mode: how slot errors are counted. Raises DataError for an empty corpus or audio that cannot be read.
    """
    if not corpus.utterances:
        raise DataError(f"{corpus.name}: no utterances to evaluate")
    scores = []
    for utterance in corpus.utterances:
        waveform = utterance.load()
        start = time.perf_counter()
        result = recognise(waveform)
        seconds = time.perf_counter() - start
        texts = [hypothesis.text for hypothesis in result.nbest]
        scores.append(score(utterance, texts, corpus.lexicon, waveform.size / SAMPLE_RATE, seconds, mode))
        if progress is not None:
            progress(scores[-1])
    return Evaluation(tuple(scores))


def score(
    utterance: Utterance,
    texts: Sequence[str],
    lexicon: SlotLexicon | None,
    audio_seconds: float = 0.0,
    seconds: float = 0.0,
    mode: CostMode = "strict",
) -> Score:
    """The errors of an n-best list [N] of texts, best first, against an utterance's labels.

    lexicon: to read slots with; None leaves slots out. Raises DataError where the list is empty.
    """
    if not texts:
        raise DataError(f"utterance {utterance.id!r}: an empty n-best list; expected at least one hypothesis")
    words: int | None = None
    errors: list[int] | None = None
    if utterance.score_words and utterance.text is not None:
        words = len(utterance.text.split())
        errors = [word_errors(utterance.text, text) for text in texts]
    slots: int | None = None
    slot_errors: int | None = None
    if utterance.slots is not None and lexicon is not None:
        slots = len(utterance.slots)
        slot_errors = slot_cost(texts[0], utterance.slots, lexicon, mode)
    return Score(
        id=utterance.id,
        speaker=utterance.speaker,
        hypothesis=texts[0],
        words=words,
        word_errors=None if errors is None else errors[0],
        oracle_errors=None if errors is None else {depth: min(errors[:depth]) for depth in ORACLE_DEPTHS},
        slots=slots,
        slot_errors=slot_errors,
        audio_seconds=audio_seconds,
        seconds=seconds,
    )


def word_errors(reference: str, hypothesis: str) -> int:
    """Substitutions, deletions and insertions, by jiwer."""
    if not reference.split():
        return len(hypothesis.split())
    measures = jiwer.process_words(reference, hypothesis)
    return measures.substitutions + measures.deletions + measures.insertions


def _rate(pairs: Any) -> float | None:
    counted = [(errors, total) for errors, total in pairs if errors is not None and total is not None]
    denominator = sum(total for _, total in counted)
    return sum(errors for errors, _ in counted) / denominator if denominator > 0 else None
