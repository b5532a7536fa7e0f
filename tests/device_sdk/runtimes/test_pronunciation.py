"""Rules of spelling as a bundle holds them."""

import pytest

from device_sdk.runtimes.ctc import WINDOWS, Pronunciation, context

SYMBOLS = ("k", "s", "i", "t", "V")


@pytest.fixture
def spelled() -> Pronunciation:
    rules = {
        ("c", "", ""): (1,),
        ("c", "", "i"): (2,),
        ("i", "", ""): (3,),
        ("t", "", ""): (4,),
        ("y", "t", "#"): (3,),
        ("i", "#", "t"): (5, 3),
    }
    return Pronunciation(SYMBOLS, rules)


@pytest.mark.parametrize(
    ("text", "phones"),
    [
        ("", ""),
        ("tic", "t i k"),
        ("city", "s i t i"),  # what comes after a letter goes before the letter alone
        ("it", "V i t"),  # as does what comes before it; an end counts
        ("it city", "V i t s i t i"),
        ("y t?", "t"),  # no rule knows these letters here
    ],
)
def test_the_rule_with_most_letters_around_counts(text: str, phones: str, spelled: Pronunciation) -> None:
    assert [SYMBOLS[each - 1] for each in spelled.encode(text)] == phones.split()


def test_contexts_grow_and_end_with_the_word() -> None:
    found = [context("dog", 1, window) for window in WINDOWS]
    assert found[:4] == [("o", "", ""), ("o", "", "g"), ("o", "d", "g"), ("o", "d", "g#")]
    assert found[-1] == ("o", "#d", "g#")


def test_written_and_read_it_is_the_same(spelled: Pronunciation) -> None:
    spelled.encode("city")
    assert Pronunciation.read(spelled.write()) == spelled


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "line 1"),
        ("k k\nc - - k", "line 1: found 'k k', expected names of phones, each once"),
        ("k\nc -", "line 2"),
        ("k\nc - - k\ncc - - k", "line 3"),
        ("k\nc - - x", "line 2: found 'c - - x'"),
    ],
)
def test_what_is_none_is_refused(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pronunciation.read(written)
