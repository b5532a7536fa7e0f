from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescoring.words import UNKNOWN, WordList

WORDS = WordList((UNKNOWN, "get", "me", "a", "coffee", "don't"))


@pytest.mark.parametrize(
    ("text", "ids"),
    [("get me a tea", [1, 2, 3, 0]), ("", []), ("  get\tme", [1, 2]), ("Get tea", [0, 0]), (["don't", "get"], [5, 1])],
)
def test_ids(text: str | list[str], ids: list[int]) -> None:
    assert WORDS.ids(text) == ids


def test_lookup() -> None:
    assert (len(WORDS), WORDS.boundary, WORDS[4], WORDS.id("coffee"), WORDS.id("tea")) == (6, 6, "coffee", 4, 0)
    assert "me" in WORDS
    assert "tea" not in WORDS


@given(st.sets(st.text("abcdefghijklmnopqrstuvwxyz'", min_size=1, max_size=8), max_size=20))
def test_text_round_trip_and_digest(words: set[str]) -> None:
    made = WordList((UNKNOWN, *sorted(words)))
    again = WordList.parse(made.text())
    assert again == made
    assert again.digest == made.digest
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
