"""How well a recognizer does on a corpus: its errors, how far its confidences can be trusted, and systems compared."""

from __future__ import annotations

from server.lab.evaluation.reliability import Reliability
from server.lab.evaluation.scores import (
    ORACLE_DEPTHS,
    Evaluation,
    Score,
    differences,
    evaluate,
    right_words,
    score,
    word_errors,
)

__all__ = [
    "ORACLE_DEPTHS",
    "Evaluation",
    "Reliability",
    "Score",
    "differences",
    "evaluate",
    "right_words",
    "score",
    "word_errors",
]
