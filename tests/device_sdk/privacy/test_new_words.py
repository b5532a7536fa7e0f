"""What a device may name: few words, the most frequent, and nothing that is no word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import reported_words
from device_sdk.wire.words import is_word

NAMES = {"o'neill", "señor"}


@pytest.mark.parametrize(
    ("unlisted", "max_words", "expected"),
    [
        ({"cortado": 3.0, "flatwhite": 5.0, "mocha": 1.0}, 2, {"cortado", "flatwhite"}),
        ({"beta": 1.0, "alpha": 1.0}, 1, {"alpha"}),
        (
            {"o'neill": 1.0, "señor": 1.0, "4711": 9.0, "two words": 9.0, "_": 9.0, "x" * 64: 9.0},
            5,
            {"o'neill", "señor"},
        ),
        ({"gone": 0.0}, 5, set()),
        ({}, 5, set()),
    ],
)
def test_table(unlisted: dict[str, float], max_words: int, expected: set[str]) -> None:
    assert reported_words(unlisted, max_words) == expected


@given(st.dictionaries(st.text(max_size=80), st.floats(0, 100), max_size=30), st.integers(1, 8))
def test_never_more_than_agreed_and_only_words(unlisted: dict[str, float], max_words: int) -> None:
    found = reported_words(unlisted, max_words)
    assert len(found) <= max_words and all(is_word(word) and unlisted[word] > 0 for word in found)


def test_an_impossible_bound_is_named() -> None:
    with pytest.raises(PrivacyError, match="max_words: found 0"):
        reported_words({"a": 1.0}, 0)
