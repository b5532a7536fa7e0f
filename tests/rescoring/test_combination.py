import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rescoring.combination import Calibration, CombinationWeights, Curve, combine, confidence, order, score_nbest
from rescoring.words import UNKNOWN, WordList

WEIGHTS = CombinationWeights(language_model=0.5, ngram_share=0.25, word_bonus=0.1, unlisted_bonus=-0.2)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"neural": -8.0, "ngram": -4.0}, -10 + 0.5 * (0.75 * -8 + 0.25 * -4) + 0.3),
        ({"neural": -8.0, "ngram": -4.0, "personal": 2.0, "hotword": 1.0}, -10 + 0.5 * (0.75 * -6 + 0.25 * -4) + 1.3),
        ({"neural": -8.0, "personal": 2.0}, -10 + 0.5 * -6 + 0.3),
        ({"neural": -8.0, "unlisted": 2}, -10 + 0.5 * -8 + 0.3 - 0.4),
        ({"ngram": -4.0, "personal": 2.0}, -10 + 0.5 * -2 + 0.3),
        ({"personal": 2.0}, -10 + 0.5 * 2 + 0.3),
        ({}, -10 + 0.3),
    ],
)
def test_combination_table(parts: dict[str, float], expected: float) -> None:
    assert combine(WEIGHTS, acoustic=-10.0, words=3, **parts) == pytest.approx(expected)


FITTED = Calibration(0.8, Curve(0.7, 0.5, 0.2, 1.0), Curve(0.9, -0.5, 0.1, 0.0))
NUMBERS = st.floats(-1e6, 1e6)


def test_the_defaults_leave_a_posterior_as_it_is() -> None:
    p = np.array([0.001, 0.3, 0.999])
    assert confidence(Curve(), p, -7.0, 3) == pytest.approx(p)
    assert confidence(Curve(), np.array([0.0, 1.0]), 0.0, 3) == pytest.approx([1e-4, 1 - 1e-4])


def test_the_curve_by_hand() -> None:
    odds = 0.7 * math.log(0.8 / 0.2) + 0.5 + 0.2 * -3 + 1.0 * -3 / 4
    assert confidence(FITTED.word, np.array([0.8]), -3.0, 4)[0] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert confidence(FITTED.word, np.array([0.8]), 2.0, 4) == confidence(FITTED.word, np.array([0.8]), 0.0, 4)


@given(
    st.builds(Curve, st.floats(0, 1e6), NUMBERS, NUMBERS, NUMBERS),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.floats(-1e6, 10),
    st.integers(0, 50),
)
def test_a_confidence_is_a_probability_and_rises_with_the_posterior(curve, shares, covered, words):
    found = confidence(curve, np.array(sorted(shares)), covered, words)
    assert ((found >= 0) & (found <= 1)).all() and (np.diff(found) >= 0).all()


def test_mappings_round_trip() -> None:
    for weights in (WEIGHTS, CombinationWeights(confidence=FITTED)):
        assert CombinationWeights.from_mapping(weights.to_mapping()) == weights
    assert CombinationWeights.from_mapping({"marginal": 1.0}).marginal == 1.0
    assert Calibration.from_mapping({"word": {"slope": 2.0}}) == Calibration(word=Curve(slope=2.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lambda": 1.0}, r"combination\.lambda: unknown"),
        ({"language_model": -1}, "language_model"),
        ({"ngram_share": 1.5}, "ngram_share"),
        ({"marginal": math.nan}, "marginal"),
        ({"alpha": 0.8, "beta": 0.3}, "alpha"),
        ({"sigma": 0}, "sigma"),
        ({"word_bonus": "x"}, "word_bonus"),
        ({"beta": True}, "beta"),
        ({"refresh": "hourly"}, "refresh"),
        ({"confidence": {"scale": 0}}, "confidence.scale"),
        ({"confidence": {"scale": 10**400}}, "confidence.scale"),
        ({"confidence": {"word": {"slope": -1}}}, "confidence.slope"),
        ({"confidence": {"word": {"offset": math.nan}}}, "confidence.offset"),
        ({"confidence": {"text": {"coverage": True}}}, "confidence.coverage"),
        ({"confidence": {"text": {"tilt": 1}}}, "confidence.text.tilt"),
        ({"confidence": {"temperature": 1}}, "confidence.temperature"),
        ({"confidence": {"word": 3}}, "confidence.word"),
        ({"confidence": [1]}, "confidence"),
    ],
)
def test_bad_values_are_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CombinationWeights.from_mapping(values)


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
    more = {"personal": np.array([-2.0, 0.25, 0.0]), "hotword": [0.0, 0.5, 0.0]}
    found = score_nbest([[1, 2], [0], []], [-1.0, -2.0, -3.0], weights, neural=neural, ngram=ngram, **more)
    assert (neural.calls, ngram.calls) == (1, 1)
    assert np.array_equal(found.neural, [-6.0, -4.0, -2.0]) and np.array_equal(found.ngram, [-3.0, -2.0, -1.0])
    assert found.personal.tolist() == [-2.0, 0.25, 0.0]
    language = [0.5 * (0.5 * -8.0 + 0.5 * -3.0), 0.5 * (0.5 * -3.75 + 0.5 * -2.0), 0.5 * (0.5 * -2.0 + 0.5 * -1.0)]
    first = [-1.0 + 0.2, -2.0 + 0.1 - 1.0 + 0.5, -3.0]
    assert found.total.tolist() == pytest.approx([a + b for a, b in zip(first, language, strict=True)])
    alone = score_nbest([[1], []], [-1.0, -2.0], CombinationWeights(word_bonus=0.5))
    assert (alone.neural, alone.ngram, alone.total.tolist()) == (None, None, [-0.5, -2.0])


@pytest.mark.parametrize(("total", "expected"), [([1.0, 3.0, 2.0], [1, 2, 0]), ([1.0, 1.0], [0, 1]), ([], [])])
def test_order_is_stable(total: list[float], expected: list[int]) -> None:
    assert order(np.array(total)) == expected


WORDS = WordList((UNKNOWN, "get", "me", "a", "coffee", "don't"))


@pytest.mark.parametrize(
    ("text", "ids"),
    [("get me a tea", [1, 2, 3, 0]), ("", []), ("  get\tme", [1, 2]), ("Get tea", [0, 0]), (["don't", "get"], [5, 1])],
)
def test_ids(text: str | list[str], ids: list[int]) -> None:
    assert WORDS.ids(text) == ids


def test_lookup() -> None:
    assert (len(WORDS), WORDS.boundary, WORDS[4], WORDS.id("coffee"), WORDS.id("tea")) == (6, 6, "coffee", 4, 0)
    assert "me" in WORDS and "tea" not in WORDS


@given(st.sets(st.text("abcdefghijklmnopqrstuvwxyz'", min_size=1, max_size=8), max_size=20))
def test_text_round_trip_and_digest(words: set[str]) -> None:
    made = WordList((UNKNOWN, *sorted(words)))
    again = WordList.parse(made.text())
    assert again == made and again.digest == made.digest
    assert WordList((UNKNOWN, *sorted(words), "zzzzzzzzz")).digest != made.digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "line 1"),
        (("get",), "line 1: found 'get'"),
        ((UNKNOWN, "a", "a"), "line 3: 'a' is already on line 2"),
        ((UNKNOWN, ""), "line 2"),
        ((UNKNOWN, "a b"), "line 2"),
        ((UNKNOWN, "</s>"), "reserved"),
    ],
)
def test_bad_lists_are_refused_by_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordList(words)
