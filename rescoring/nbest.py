"""Scores of an n-best list: neural and n-gram log-probabilities, the marginal adaptation, and their combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rescoring.combination import CombinationWeights, combine
from rescoring.marginals import personal_scores

__all__ = ["LanguageModel", "NBestScores", "order", "score_nbest"]


class LanguageModel(Protocol):
    """Anything that gives log p(word | words before it) of sentences over a word list.

    Takes N sentences as word ids (0 for unlisted words, no boundary ids). Returns N arrays, float [len(sentence) + 1],
    nats: one value a word, the last one for the end of the sentence.
    """

    def __call__(self, sentences: Sequence[Sequence[int]]) -> Sequence[NDArray[np.floating]]: ...


@dataclass(frozen=True, slots=True)
class NBestScores:
    """Parts of the scores of N hypotheses, float64 [N], nats; None where there is no such model."""

    neural: NDArray[np.float64] | None
    ngram: NDArray[np.float64] | None
    personal: NDArray[np.float64]
    total: NDArray[np.float64]


def score_nbest(
    sentences: Sequence[Sequence[int]],
    acoustic: Sequence[float],
    weights: CombinationWeights,
    *,
    neural: LanguageModel | None = None,
    ngram: LanguageModel | None = None,
    factors: NDArray[np.float64] | None = None,
    hotword: Sequence[float] | None = None,
) -> NBestScores:
    """Score N hypotheses of one utterance with one call to each language model.

    sentences: N lists of word ids, 0 for unlisted words. acoustic, hotword: N scores, nats. factors: [n], log of
    eq. 1's factor for each word (``rescoring.marginals.adaptation``), or None for no adaptation.
    """

    def total_of(model: LanguageModel | None) -> NDArray[np.float64] | None:
        return None if model is None else np.array([float(values.sum()) for values in model(sentences)])

    neural_scores, ngram_scores = total_of(neural), total_of(ngram)
    personal = np.zeros(len(sentences)) if factors is None else personal_scores(sentences, factors)
    total = combine(
        weights,
        acoustic=np.asarray(acoustic, dtype=np.float64),
        words=np.array([len(words) for words in sentences], dtype=np.float64),
        unlisted=np.array([words.count(0) for words in sentences], dtype=np.float64),
        neural=neural_scores,
        ngram=ngram_scores,
        personal=personal,
        hotword=0.0 if hotword is None else np.asarray(hotword, dtype=np.float64),
    )
    return NBestScores(neural_scores, ngram_scores, personal, np.asarray(total, dtype=np.float64))


def order(total: NDArray[np.float64]) -> list[int]:
    """Indices from the best score to the worst; equal scores keep their order."""
    return [int(index) for index in np.argsort(-total, kind="stable")]
