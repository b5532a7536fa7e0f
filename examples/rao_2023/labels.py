"""What a teacher teaches: the best of its n-best after a second pass, where it is sure (Rao et al. 2023, section 2.2).

The second pass knows general text only, nothing of what people say to their devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.rao_2023.lists import nbest
from export.networks.rnnt import RNNT
from rescoring.words import WordList
from server.lab.training.ngram import Ngram, estimate, log_probabilities

__all__ = ["LabelSettings", "TextModel", "general_text", "teacher_labels"]

TextModel = Callable[[str], float]
"""log p(text), nats, its end included."""


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """beam, threshold: of the teacher's search, which has more time than a user who waits: see
    :func:`examples.rao_2023.lists.nbest`. text_weight: of the n-gram of general text beside the network.
    word_bonus: nats for every word, which network and n-gram alone would rather leave out. sure: nats a piece; a label
    to which the teacher's network gives less is not learned from (sections 1 and 2.2: low confidence is filtered), so
    that a better teacher teaches more."""

    beam: int = 8
    threshold: float = 6.0
    text_weight: float = 0.5
    word_bonus: float = 5.0
    sure: float = -0.25


def general_text(sentences: Sequence[str], order: int = 4) -> TextModel:
    """log p of a text by a Kneser-Ney n-gram of ``sentences``, over their words."""
    ranked = [word for word, _ in Counter(word for text in sentences for word in text.split()).most_common()]
    words = WordList(("<unk>", *ranked))
    model: Ngram = estimate([words.ids(text) for text in sentences], words, order, (1, 1, 2))
    held: dict[str, float] = {}

    def score(text: str) -> float:
        if text not in held:
            held[text] = sum(log_probabilities(model, words.ids(text)))
        return held[text]

    return score


def teacher_labels(
    teacher: RNNT,
    features: Sequence[NDArray[np.floating]],
    decode: Callable[[Sequence[int]], str],
    text: TextModel,
    settings: LabelSettings,
) -> list[tuple[int, ...] | None]:
    """The tokens to teach for each of B utterances [F, M] raw log-mel; None where the teacher is not sure or heard
    nothing. text: the second pass."""

    def rescored(entry: tuple[tuple[int, ...], float]) -> float:
        said = decode(entry[0])
        return entry[1] + settings.text_weight * (text(said) + settings.word_bonus * len(said.split()))

    found: list[tuple[int, ...] | None] = []
    for entries in nbest(teacher, features, settings.beam, settings.threshold):
        tokens, score = max(entries, key=rescored)
        found.append(tokens if tokens and score >= settings.sure * len(tokens) else None)
    return found
