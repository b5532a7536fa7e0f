"""Spoken numbers, capitals and subtitles."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from device_sdk.formatting import ORDINALS, cardinal, cues, ordinal, spans, srt, webvtt, written_form
from device_sdk.hypothesis import Word

FIRST = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
ONES = [*FIRST.split(" "), "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_, *WRITTEN = Path(__file__).with_name("written_forms.tsv").read_text("utf-8").splitlines()
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


@pytest.mark.parametrize(("said", "written"), [("", ""), *(line.split("\t") for line in WRITTEN)])
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
