"""Rules of spelling that are learned from words with their phones."""

import pytest

from server.lab.corpora.phones import Pronunciations
from server.lab.training.pronunciation import align, spelling_rules

SYMBOLS = ("", "k", "s", "a", "t", "S", "V", "w", "n", "h", "i")
WORDS = {
    "cat": "k a t", "act": "a k t", "cit": "s i t", "cits": "s i t s", "shat": "S a t", "tash": "t a S", "hat": "h a t",
    "one": "w V n", "tin": "t i n", "can": "k a n", "than": "t a n", "sane": "s a n", "kit": "k i t",
}  # fmt: skip


@pytest.fixture
def pronunciations() -> Pronunciations:
    number = {name: at for at, name in enumerate(SYMBOLS)}
    return Pronunciations(SYMBOLS, {word: tuple(number[p] for p in said.split()) for word, said in WORDS.items()})


def test_every_word_is_said_as_it_was(pronunciations: Pronunciations) -> None:
    rules = spelling_rules(pronunciations)
    assert {word: rules.word(word) for word in WORDS} == dict(pronunciations.words)
    assert rules.symbols == SYMBOLS[1:] and len(rules.rules) < sum(map(len, WORDS))


def test_a_new_word_sounds_like_those_that_are_spelled_alike(pronunciations: Pronunciations) -> None:
    rules = spelling_rules(pronunciations)
    assert [SYMBOLS[each] for each in rules.word("cash")] == ["k", "a", "S"]
    assert [SYMBOLS[each] for each in rules.word("cin")] == ["s", "i", "n"]


@pytest.mark.parametrize(("word", "phones"), [("abc", (1, 2, 3)), ("abcd", (1,)), ("a", (1, 2, 3)), ("a", (1,) * 5)])
def test_letters_share_all_phones_in_order(word: str, phones: tuple[int, ...]) -> None:
    chunks = align(word, phones, {})
    assert len(chunks) == len(word) and tuple(phone for chunk in chunks for phone in chunk) == phones


def test_likely_chunks_are_chosen() -> None:
    scores = {("x", (1, 2)): -0.1, ("e", (3,)): -0.1, ("x", (1,)): -5.0, ("e", (2, 3)): -5.0}
    assert align("xe", (1, 2, 3), scores) == ((1, 2), (3,))
