"""Phrases that are heard by another spelling: what was heard is read, and the phrase is written for it.

A text is read from left to right, whole words only, always the longest spelling that matches. A phrase that stands
there itself is read as itself, so that no part of it is taken for the spelling of another one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from device_sdk.hypothesis import Word

__all__ = ["Spellings", "settled", "written", "written_words"]

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spellings:
    """phrases: words as they are heard -> the phrase they stand for; phrases themselves are among them."""

    phrases: Mapping[str, str]
    _words: Mapping[Words, Words] = field(init=False, repr=False, compare=False)
    _sorted: Sequence[str] = field(init=False, repr=False, compare=False)
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = {tuple(heard.split()): tuple(phrase.split()) for heard, phrase in self.phrases.items()}
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "_sorted", sorted(self.phrases))
        object.__setattr__(self, "_longest", max(map(len, words), default=0))

    def match(self, words: Sequence[str], start: int) -> tuple[int, Words]:
        """(how many words are read at ``start``, what is written for them): a spelling, or the one word there."""
        for length in range(min(self._longest, len(words) - start), 0, -1):
            phrase = self._words.get(tuple(words[start : start + length]))
            if phrase is not None:
                return length, phrase
        return 1, (words[start],)

    def begun(self, words: Sequence[str], start: int) -> bool:
        """Whether the words from ``start`` on, the last of which may go on, may become a spelling."""
        if len(words) - start > self._longest:
            return False
        rest = " ".join(words[start:])
        at = bisect_left(self._sorted, rest)
        return at < len(self._sorted) and self._sorted[at].startswith(rest)


def written(text: str, spellings: Spellings) -> str:
    """A text with the phrases in place of their spellings."""
    words = text.split()
    return " ".join(word for _, _, phrase in _read(words, spellings) for word in phrase)


def written_words(words: Sequence[Word], spellings: Spellings) -> tuple[Word, ...]:
    """The same of words with times. A phrase of as many words as were heard has theirs; another one divides the time of
    what was heard by its letters."""
    found: list[Word] = []
    for start, stop, phrase in _read([word.text for word in words], spellings):
        heard = words[start:stop]
        if len(phrase) == len(heard):
            found += [replace(word, text=text) for word, text in zip(heard, phrase, strict=True)]
            continue
        begin, share = heard[0].start, (heard[-1].end - heard[0].start) / sum(map(len, phrase))
        for text in phrase:
            found.append(Word(text, begin, begin + share * len(text)))
            begin = found[-1].end
    return tuple(found)


def settled(text: str, spellings: Spellings) -> str:
    """What is written for a text, as far as nothing that may follow it can change that: the beginning of what is
    written for every text that begins with this one."""
    words = text.split()
    found: list[str] = []
    for start, _, phrase in _read(words, spellings):
        if spellings.begun(words, start):
            break
        found += phrase
    return " ".join(found)


def _read(words: Sequence[str], spellings: Spellings) -> Iterator[tuple[int, int, Words]]:
    """(first word, the one after the last, what is written for them), in order; together they cover every word."""
    at = 0
    while at < len(words):
        length, phrase = spellings.match(words, at)
        yield at, at + length, phrase
        at += length
