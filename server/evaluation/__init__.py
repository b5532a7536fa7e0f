"""How well a recogniser does on a corpus: its errors, how far its confidences can be trusted, and systems compared."""

from __future__ import annotations

from server.evaluation.comparison import differences
from server.evaluation.reliability import Reliability
from server.evaluation.scores import ORACLE_DEPTHS, Evaluation, Score, evaluate, right_words, score, word_errors

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
