from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from rescoring.combination import CombinationWeights, order, score_nbest


class Counting:
    """A language model that gives every symbol the same score and counts its calls."""

    def __init__(self, score: float) -> None:
        self.score, self.calls = score, 0

    def __call__(self, sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        self.calls += 1
        return [np.full(len(sentence) + 1, self.score) for sentence in sentences]


def test_every_part_of_every_hypothesis_with_one_call_a_model() -> None:
    neural, ngram = Counting(-2.0), Counting(-1.0)
    weights = CombinationWeights(language_model=0.5, ngram_share=0.5, word_bonus=0.1, unlisted_bonus=-1.0)
    found = score_nbest(
        [[1, 2], [0], []],
        [-1.0, -2.0, -3.0],
        weights,
        neural=neural,
        ngram=ngram,
        factors=np.array([0.25, 1.0, -3.0]),
        hotword=[0.0, 0.5, 0.0],
    )
    assert (neural.calls, ngram.calls) == (1, 1)
    assert np.array_equal(found.neural, [-6.0, -4.0, -2.0]) and np.array_equal(found.ngram, [-3.0, -2.0, -1.0])
    assert found.personal.tolist() == [-2.0, 0.25, 0.0]
    assert found.total.tolist() == pytest.approx(
        [
            -1.0 + 0.5 * (0.5 * -8.0 + 0.5 * -3.0) + 0.2,
            -2.0 + 0.5 * (0.5 * -3.75 + 0.5 * -2.0) + 0.1 - 1.0 + 0.5,
            -3.0 + 0.5 * (0.5 * -2.0 + 0.5 * -1.0),
        ]
    )
    alone = score_nbest([[1], []], [-1.0, -2.0], CombinationWeights(word_bonus=0.5))
    assert (alone.neural, alone.ngram, alone.total.tolist()) == (None, None, [-0.5, -2.0])


@pytest.mark.parametrize(("total", "expected"), [([1.0, 3.0, 2.0], [1, 2, 0]), ([1.0, 1.0], [0, 1]), ([], [])])
def test_order_is_stable(total: list[float], expected: list[int]) -> None:
    assert order(np.array(total)) == expected
