"""Spoken numbers, capitals and subtitles."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from device_sdk.formatting import ORDINALS, cardinal, cues, ordinal, spans, srt, webvtt, written_form
from device_sdk.hypothesis import Word

FIRST = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
ONES = [*FIRST.split(" "), "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
PARTS = (*ONES, *TENS[2:], *ORDINALS, "a", "and", "hundred", "thousand", "million", "point", "percent", "am", "p", "m",
         "oh", "at", "for", "of", "may", "the", "i", "coffee")  # fmt: skip


def spoken(value: int, joined: bool) -> list[str]:
    """A number in words, written apart from the reader under test. joined: with "and" after hundreds."""
    if value >= 1_000_000:
        rest = spoken(value % 1_000_000, joined) if value % 1_000_000 else []
        return [*spoken(value // 1_000_000, joined), "million", *rest]
    if value >= 1_000:
        rest = spoken(value % 1_000, joined) if value % 1_000 else []
        between = ["and"] if joined and 0 < value % 1_000 < 100 else []
        return [*spoken(value // 1_000, joined), "thousand", *between, *rest]
    if value >= 100:
        rest = spoken(value % 100, joined) if value % 100 else []
        return [ONES[value // 100], "hundred", *(["and"] if joined and rest else []), *rest]
    if value >= 20:
        return [TENS[value // 10], *([ONES[value % 10]] if value % 10 else [])]
    return [ONES[value]]


@given(some.integers(0, 999_999), some.booleans())
def test_every_number_is_read_back(value: int, joined: bool) -> None:
    words = spoken(value, joined)
    assert cardinal(words) == (value, len(words)) and cardinal([*words, "lights"]) == (value, len(words))
    if value != 1:
        assert written_form(f"turn on {' '.join(words)} lights") == f"Turn on {value} lights"


@given(some.integers(1, 999_999), some.booleans())
def test_every_ordinal_is_read_back(value: int, joined: bool) -> None:
    words = spoken(value, joined)
    last = next(ending for ending, name in ORDINALS.items() if name == words[-1])
    assert ordinal([*words[:-1], last, "floor"]) == (value, len(words))


@given(some.lists(some.sampled_from(PARTS), max_size=12))
def test_spans_cover_every_word_once(words: list[str]) -> None:
    found = spans(words)
    assert [index for span in found for index in range(span.start, span.stop)] == list(range(len(words)))
    assert all(span.text and span.stop > span.start for span in found)
    assert written_form(" ".join(words)) == " ".join(span.text for span in found)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("", ""),
        ("set the volume up", "Set the volume up"),
        ("a sixteen ounce latte", "A 16 ounce latte"),
        ("twenty five", "25"),
        ("one two three", "123"),
        ("call five five five oh one four two", "Call 5550142"),
        ("zero zero seven", "007"),
        ("one two", "1 2"),
        ("two three hundred", "2 300"),
        ("one two three hundred", "1 2 300"),
        ("this one and no one", "This one and no one"),
        ("one and two", "One and 2"),
        ("two croissants and one espresso", "2 croissants and one espresso"),
        ("a hundred and five times", "105 times"),
        ("a thousand and one nights", "1001 nights"),
        ("a million", "1 million"),
        ("hundred of them", "Hundred of them"),
        ("two thousand and twenty six", "2026"),
        ("two thousand three thousand", "2000 3000"),
        ("one hundred and two hundred", "100 and 200"),
        ("three hundred and five thousand", "305000"),
        ("nineteen hundred", "1900"),
        ("twelve hundred and fifty", "1250"),
        ("twenty hundred", "Twenty hundred"),
        ("in nineteen eighty four", "In 1984"),
        ("twenty twenty six", "2026"),
        ("nineteen oh five", "1905"),
        ("two million", "2 million"),
        ("two point five million", "2.5 million"),
        ("one million two hundred thousand", "1200000"),
        ("three point one four", "3.14"),
        ("zero point five", "0.5"),
        ("what is the point", "What is the point"),
        ("one point", "One point"),
        ("set it to one percent", "Set it to 1%"),
        ("fifty per cent", "50%"),
        ("wake me at seven am", "Wake me at 7 am"),
        ("ten thirty p m", "10:30 pm"),
        ("an alarm for ten thirty", "An alarm for 10:30"),
        ("an alarm for ten oh five tomorrow", "An alarm for 10:05 tomorrow"),
        ("at six forty five please", "At 6:45 please"),
        ("for ten thirty minute sessions", "For 10 30 minute sessions"),
        ("half past ten", "Half past 10"),
        ("at one o'clock", "At 1 o'clock"),
        ("the twenty first", "The 21st"),
        ("the eleventh and the hundred and third", "The 11th and the hundred and third"),
        ("the two hundred and twelfth", "The 212th"),
        ("wait a second", "Wait a second"),
        ("first of all one tenth", "First of all one tenth"),
        ("the third of may", "The 3rd of May"),
        ("may second", "May 2nd"),
        ("it may rain in march", "It may rain in march"),
        ("monday the third", "Monday the 3rd"),
        ("next monday i'm out and i think it's december", "Next Monday I'm out and I think it's December"),
    ],
)
def test_texts(said: str, written: str) -> None:
    assert written_form(said) == written


def test_subtitles_break_at_pauses_and_long_lines() -> None:
    words = [Word("turn", 0.1, 0.3), Word("left", 0.3, 0.5), Word("then", 2.0, 2.1)]
    words += [Word("straight", 3.0 + index, 3.9 + index) for index in range(7)]
    found = cues(words)
    assert [cue.text.split()[0] for cue in found[:3]] == ["turn", "then", "straight"]
    assert all(len(cue.text) <= 42 and cue.end - cue.start <= 6.0 for cue in found)
    assert " ".join(cue.text for cue in found) == " ".join(word.text for word in words)
    assert all(cue.end <= later.start for cue, later in pairwise(found))
    assert srt(found[:2]) == ("1\n00:00:00,100 --> 00:00:00,800\nturn left\n\n2\n00:00:02,000 --> 00:00:02,700\nthen\n")
    assert webvtt(found[:1]) == "WEBVTT\n\n00:00:00.100 --> 00:00:00.800\nturn left\n"
    assert srt(cues([Word("late", 3_599.9996, 7_322.5)])) == "1\n01:00:00,000 --> 02:02:02,500\nlate\n"
    assert srt(()) == "" and webvtt(()) == "WEBVTT\n"
