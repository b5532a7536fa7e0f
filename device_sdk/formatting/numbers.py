"""Spoken English numbers: a phrase to its value."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DIGITS", "ORDINALS", "SCALES", "Phrase", "below_hundred", "cardinal", "digit", "ordinal"]

Phrase = tuple[int, int]
"""A number's value, and how many words it took."""

_ONES = "zero one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

DIGITS = {name: value for value, name in enumerate(_ONES.split())}
TEENS = {name: value for value, name in enumerate(_TEENS.split(), 10)}
TENS = {name: 10 * value for value, name in enumerate(_TENS.split(), 2)}
SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
ORDINALS = {
    **{f"{name}th": name for name in (*DIGITS, *TEENS, "hundred", *SCALES)},
    **{f"{name[:-1]}ieth": name for name in TENS},
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    "twelfth": "twelve",
}
"""The last word of an ordinal -> that of its cardinal."""


def digit(word: str) -> int | None:
    """The value of a word in a string of digits, where "oh" is 0."""
    return 0 if word in ("oh", "o") else DIGITS.get(word)


def cardinal(words: Sequence[str]) -> Phrase | None:
    """The longest number that ``words`` begin with, below 10^12; None where they begin with none.

    "a hundred" is 100, "nineteen hundred" 1900. "and" may stand after a hundred or a scale only: "two hundred and five"
    is one number, "one and two" are two.
    """
    if _word(words, 0) == "zero":
        return 0, 1
    found = _hundreds_of_tens(words)
    if found is not None:
        return found
    total, at, ceiling = 0, 0, 1_000 * SCALES["billion"]
    while ceiling > 1:
        joined = 1 if at and _word(words, at) == "and" else 0
        group = below_hundred(words, at + joined) if joined else _below_thousand(words, at)
        if group is None:
            break
        value, taken = group
        scale = SCALES.get(_word(words, at + joined + taken), 1)
        if scale >= ceiling or (joined and scale > 1) or _word(words, at + joined + taken) == "hundred":
            break  # what follows is another number
        if scale == 1 and _word(words, at) == "a" and taken == 1:
            break
        total, at, ceiling = total + value * scale, at + joined + taken + (scale > 1), scale
    return (total, at) if at else None


def ordinal(words: Sequence[str]) -> Phrase | None:
    """The ordinal that ``words`` begin with: "twenty first" is 21 of 2 words. None where they begin with none."""
    for at, word in enumerate(words):
        if word in ORDINALS:
            found = cardinal([*words[:at], ORDINALS[word]])
            return found if found is not None and found[1] == at + 1 else None
        if word not in _PARTS:
            return None
    return None


def below_hundred(words: Sequence[str], at: int = 0) -> Phrase | None:
    """A number from 1 to 99 at ``at``."""
    word = _word(words, at)
    if word in TENS:
        unit = DIGITS.get(_word(words, at + 1), 0)
        return (TENS[word] + unit, 2) if unit else (TENS[word], 1)
    value = TEENS.get(word) or DIGITS.get(word)
    return (value, 1) if value else None


def _below_thousand(words: Sequence[str], at: int) -> Phrase | None:
    article = at == 0 and _word(words, 0) == "a" and _word(words, 1) in ("hundred", *SCALES)
    head = (1, 1) if article else below_hundred(words, at)
    if head is None or head[0] > 9 or _word(words, at + 1) != "hundred":
        return head
    return _with_rest(words, at, head[0] * 100, 2)


def _hundreds_of_tens(words: Sequence[str]) -> Phrase | None:
    head = below_hundred(words)
    if head is None or head[0] < 10 or head[0] % 10 == 0 or _word(words, head[1]) != "hundred":
        return None
    value, taken = _with_rest(words, 0, head[0] * 100, head[1] + 1)
    return (head[0] * 100, head[1] + 1) if _word(words, taken) in SCALES else (value, taken)


def _with_rest(words: Sequence[str], at: int, hundreds: int, taken: int) -> Phrase:
    """Hundreds, and what is below 100 after them."""
    joined = 1 if _word(words, at + taken) == "and" else 0
    rest = below_hundred(words, at + taken + joined)
    if rest is None or _word(words, at + taken + joined + rest[1]) == "hundred":
        return hundreds, taken
    return hundreds + rest[0], taken + joined + rest[1]


def _word(words: Sequence[str], at: int) -> str:
    return words[at] if at < len(words) else ""


_PARTS = {"a", "and", "hundred", *DIGITS, *TEENS, *TENS, *SCALES}
