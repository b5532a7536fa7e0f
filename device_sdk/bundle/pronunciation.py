"""How words sound, by rules of spelling: what each letter stands for, by the letters around it.

A rule with more letters around goes before one with fewer, so that what is irregular (*one*, *people*) is a rule of its
own, and a word that nobody listed sounds like those that are spelled alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WINDOWS = ((0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (4, 4), (6, 6))
"""Letters before and after a letter that rules may look at, fewest first. An end of the word is one."""
EDGE = "#"
_NONE = "-"

Context = tuple[str, str, str]
"""A letter, those before it and those after it."""


def context(word: str, place: int, window: tuple[int, int]) -> Context:
    """Of one letter of a word, within one of ``WINDOWS``; the last ones may be the same where the word is short."""
    framed, at = f"{EDGE}{word}{EDGE}", place + 1
    before, after = window
    return word[place], framed[max(0, at - before) : at], framed[at + 1 : at + 1 + after]


def rule(
    rules: Mapping[Context, tuple[int, ...]], word: str, place: int, windows: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """What the rule with most letters around says of a letter; None where there is none."""
    known = (rules.get(context(word, place, window)) for window in reversed(windows))
    return next((phones for phones in known if phones is not None), None)


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """symbols: names of phones; the first is 1, since 0 is blank. rules: phones of a letter in a context."""

    symbols: tuple[str, ...]
    rules: Mapping[Context, tuple[int, ...]]
    _said: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def encode(self, text: str) -> list[int]:
        """The phones of a text, word by word. A letter that no rule knows is silent."""
        return [phone for word in text.split() for phone in self.word(word)]

    def word(self, word: str) -> tuple[int, ...]:
        """The phones of one word."""
        if word not in self._said:
            self._said[word] = tuple(phone for place in range(len(word)) for phone in self._letter(word, place))
        return self._said[word]

    def _letter(self, word: str, place: int) -> tuple[int, ...]:
        return rule(self.rules, word, place, WINDOWS) or ()

    def write(self) -> str:
        """A line of the symbols, then one a rule: letter, before, after, phones; ``-`` for none."""
        lines = [" ".join(self.symbols)]
        for around, phones in self.rules.items():
            lines.append(" ".join([*(part or _NONE for part in around), *(self.symbols[one - 1] for one in phones)]))
        return "\n".join(lines)

    @classmethod
    def read(cls, written: str) -> Pronunciation:
        """What :meth:`write` gave. Raises ValueError, which names the line, for what it never gives."""
        first, *lines = written.split("\n")
        symbols = tuple(first.split())
        numbers = {name: number for number, name in enumerate(symbols, 1)}
        if not symbols or len(numbers) < len(symbols):
            raise ValueError(f"line 1: found {first[:40]!r}, expected names of phones, each once")
        rules: dict[Context, tuple[int, ...]] = {}
        for number, line in enumerate(lines, 2):
            parts = line.split(" ")
            if len(parts) < 3 or len(parts[0]) != 1 or not numbers.keys() >= set(parts[3:]):
                raise ValueError(f"line {number}: found {line[:40]!r}, expected a letter, those around it, and phones")
            letter, before, after = (part if part != _NONE else "" for part in parts[:3])
            rules[letter, before, after] = tuple(numbers[name] for name in parts[3:])
        return cls(symbols, rules)
