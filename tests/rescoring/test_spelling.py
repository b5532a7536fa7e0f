from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescoring.spelling import LetterModel, letter_model, own_word_gain

WORDS = ("get", "gate", "tag", "tea", "state", "gets")
MODEL = letter_model(WORDS)


def test_a_bigram_of_letters_by_hand() -> None:
    model = letter_model(["ab", "aa"], order=2)
    assert len(model.alphabet) == 4  # a, b, the end, any other
    unigram_b = (1 + 3 * 1 / 4) / (6 + 3)  # a a a b end end: 6 letters, 3 kinds
    assert model.probability("b", "") == pytest.approx(unigram_b)
    bigram_b = (1 + 3 * unigram_b) / (3 + 3)  # after a: b, a, end
    assert model.probability("b", "a") == pytest.approx(bigram_b)


@given(st.text("aegst", max_size=5))
def test_letters_sum_to_one_after_any_others(before: str) -> None:
    known = [letter for letter in MODEL.alphabet if letter != "\0"]
    assert sum(MODEL.probability(letter, before) for letter in known) + MODEL.probability("z", before) == pytest.approx(
        1.0
    )


def test_words_of_a_length_are_a_part_of_all() -> None:
    model = letter_model(["a", "b", "ab"], order=3)
    short = sum(math.exp(model.score(first)) for first in ("", "a", "b", "z"))
    longer = sum(math.exp(model.score(first + second)) for first in "abz" for second in "abz")
    assert 0.3 < short + longer < 1.0


@pytest.mark.parametrize(("likely", "unlikely"), [("gate", "gtae"), ("stag", "zqxj"), ("get", "getgetget")])
def test_likely_spellings(likely: str, unlikely: str) -> None:
    assert MODEL.score(likely) > MODEL.score(unlikely)


def test_the_order_of_the_words_does_not_matter() -> None:
    again = letter_model(reversed(WORDS))
    assert isinstance(again, LetterModel)
    assert again.score("estate") == MODEL.score("estate")


@pytest.mark.parametrize(
    ("weight", "total", "share", "expected"),
    [
        (0.0, 0.0, 0.5, 0.0),
        (1.0, 2.0, 0.0, 0.0),
        (1.0, 2.0, 0.5, math.log((0.5 * 1e-6 + 0.25) / 1e-6)),
        (0.0, 2.0, 0.5, math.log(0.5)),
    ],
)
def test_own_words_by_hand(weight: float, total: float, share: float, expected: float) -> None:
    assert own_word_gain(math.log(1e-6), weight, total, share) == pytest.approx(expected)


@given(st.floats(-60, -0.1), st.floats(0, 10), st.floats(0.1, 10), st.floats(0, 0.99))
def test_with_its_gain_a_spelling_is_still_a_probability(
    letters: float, weight: float, more: float, share: float
) -> None:
    gain = own_word_gain(letters, weight, weight + more, share)
    assert letters + gain <= 1e-9
    assert gain >= math.log1p(-share) - 1e-9


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_bad_shares_are_named(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        own_word_gain(-3.0, 1.0, 1.0, share)
