from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescoring import ngrams
from rescoring.ngrams import BEGIN, NgramCounts, add, context_scores, ngram_weights, probability

MARGINAL = np.array([0.1, 0.2, 0.3, 0.4])
sentences = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=5)


def heard(*said: list[int], order: int = 3) -> NgramCounts:
    counts = NgramCounts()
    for words in said:
        counts = add(counts, ngram_weights([words], [1.0], order))
    return counts


def test_ngrams_by_hand() -> None:
    found = ngram_weights([[1, 2, 1], [1, 3]], [1.0, 0.5], 3)
    assert found == {
        (BEGIN, 1): 1.5,
        (1, 2): 1.0,
        (2, 1): 1.0,
        (BEGIN, 1, 2): 1.0,
        (1, 2, 1): 1.0,
        (1, 3): 0.5,
        (BEGIN, 1, 3): 0.5,
    }
    assert ngram_weights([[1, 2]], [0.0], 3) == {}
    assert max(map(len, ngram_weights([[1, 2, 1]], [1.0], 2))) == 2


def test_the_recursion_by_hand() -> None:
    counts = heard([1, 2], [1, 2], [1, 3])
    bigram = (2 + 2 * 0.3) / (3 + 2)
    trigram = (2 + 2 * bigram) / (3 + 2)
    assert probability(counts, [BEGIN, 1], 2, 0.3, 2.0, 2) == pytest.approx(bigram)
    assert probability(counts, [BEGIN, 1], 2, 0.3, 2.0, 3) == pytest.approx(trigram)
    assert probability(counts, [BEGIN, 3], 2, 0.3, 2.0, 3) == 0.3
    after_begin = (3 + 2 * 0.2) / (3 + 2)
    found = context_scores([[1, 2], [3], []], counts, MARGINAL, 2.0, 3)
    never = (0 + 2 * 0.4) / (3 + 2)
    expected = [math.log(after_begin / 0.2) + math.log(trigram / 0.3), math.log(never / 0.4), 0.0]
    assert found.tolist() == pytest.approx(expected)


@given(sentences, st.floats(0.1, 20), st.integers(2, 3), st.lists(st.integers(0, 3), max_size=3))
def test_sums_to_one_after_any_history(said: list[list[int]], smoothing: float, order: int, before: list[int]) -> None:
    counts = heard(*said, order=order)
    history = [BEGIN, *before][1 - order :]
    total = sum(probability(counts, history, word, MARGINAL[word], smoothing, order) for word in range(4))
    assert total == pytest.approx(1.0)


@given(sentences, st.floats(0.1, 20), st.integers(2, 3))
def test_a_loss_is_bounded_and_without_counts_there_is_neither(
    said: list[list[int]], smoothing: float, order: int
) -> None:
    assert context_scores(said, NgramCounts(), MARGINAL, smoothing, order).tolist() == [0.0] * len(said)
    heaviest = sum(map(len, said))
    for words, score in zip(said, context_scores(said, heard(*said), MARGINAL, smoothing, order), strict=True):
        assert score >= -len(words) * (order - 1) * math.log((heaviest + smoothing) / smoothing) - 1e-9


@given(sentences, sentences)
def test_counts_of_utterances_add_in_any_order_and_are_taken_back(
    first: list[list[int]], second: list[list[int]]
) -> None:
    one, other = (ngram_weights(each, [1.0] * len(each), 3) for each in (first, second))
    together = add(add(NgramCounts(), one), other)
    assert together == add(add(NgramCounts(), other), one)
    assert together.ngrams == ngram_weights(first + second, [1.0] * len(first + second), 3)
    assert add(together, other, sign=-1.0) == add(NgramCounts(), one)
    pairs = Counter(pair for words in first + second for pair in pairwise([BEGIN, *words]))
    assert {ngram: weight for ngram, weight in together.ngrams.items() if len(ngram) == 2} == pairs


@given(st.lists(sentences, min_size=1, max_size=6), st.floats(0.3, 0.99))
def test_older_counts_weigh_less(utterances: list[list[list[int]]], decay: float) -> None:
    counts, plain = NgramCounts(), Counter[tuple[int, ...]]()
    for said in utterances:
        found = ngram_weights(said, [1.0] * len(said), 2)
        counts = add(counts, found, decay=decay)
        plain = Counter({ngram: weight * decay for ngram, weight in plain.items()}) + Counter(found)
    for ngram, weight in plain.items():
        assert counts.ngrams[ngram] / counts.unit == pytest.approx(weight)


def test_the_lightest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "LIMIT", 10)
    counts = add(NgramCounts(), {(0, word): 1.0 + word for word in range(12)})
    assert sorted(counts.ngrams) == [(0, word) for word in range(3, 12)]
    assert counts.contexts == {(0,): sum(counts.ngrams.values())}
    for _ in range(60):
        counts = add(counts, {(1, 2): 1.0}, decay=0.5)
    assert counts.unit <= 1e6 * 2
    assert counts.ngrams[1, 2] / counts.unit == pytest.approx(2.0)
    assert (0, 3) not in counts.ngrams


@pytest.mark.parametrize(("order", "smoothing"), [(1, 1.0), (2, 0.0)])
def test_bad_values_are_named(order: int, smoothing: float) -> None:
    with pytest.raises(ValueError, match="order, smoothing"):
        context_scores([[1]], NgramCounts(), MARGINAL, smoothing, order)
