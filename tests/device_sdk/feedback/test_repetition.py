"""Repetitions, by how alike two n-best lists are and how soon the second came."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.feedback.repetition import RepetitionSettings, is_repetition, likeness

FIRST = ("play hello for beyond", "play halo by beyonce")
SECOND = ("play halo by beyonce", "play halo by beyond")


@pytest.mark.parametrize(
    ("first", "second", "delay", "settings", "expected"),
    [
        (FIRST, SECOND, 2.0, {}, True),
        (FIRST, SECOND, 10.0, {}, True),
        (FIRST, SECOND, 10.1, {}, False),
        (FIRST, SECOND, -0.1, {}, False),
        (FIRST, SECOND, math.nan, {}, False),
        (FIRST, SECOND, 30.0, {"seconds": 60.0}, True),
        (FIRST, ("what is the time", "what is the dime"), 2.0, {}, False),
        (FIRST, SECOND, 2.0, {"similarity": 1.1}, False),
        (FIRST, SECOND[:1], 2.0, {}, True),
        (FIRST[1:], SECOND, 2.0, {}, False),  # heard the same again
        (FIRST[:1], SECOND[:1], 2.0, {}, False),
        (FIRST, SECOND, 2.0, {"texts": 1}, False),
        (("next",), ("next",), 2.0, {}, False),
        (("",), ("",), 2.0, {}, False),
        (("",), ("next",), 2.0, {"similarity": 0.0, "texts": 1}, True),
        (("", "next"), ("text", "next"), 2.0, {}, True),
        ((), SECOND, 2.0, {}, False),
        (FIRST, (), 2.0, {}, False),
    ],
)
def test_a_table_of_repetitions(first, second, delay, settings, expected) -> None:
    assert is_repetition(first, second, delay, RepetitionSettings(**settings)) is expected


texts = st.lists(st.text("abc ", max_size=6), max_size=4)


@given(texts, texts)
def test_likeness_is_a_share_and_symmetric(first: list[str], second: list[str]) -> None:
    found = likeness(first, second)
    assert 0.0 <= found <= 1.0 and found == likeness(second, first)
    assert (found == 1.0) == bool({*first} & {*second} - {""})
