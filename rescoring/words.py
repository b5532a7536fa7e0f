"""The public word list: which words marginals, the language model and the n-gram may speak about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

UNKNOWN = "<unk>"
"""Line 0 of every word list: the one bucket of all words that are not on it."""
RESERVED = ("<s>", "</s>")


@dataclass(frozen=True, slots=True)
class WordList:
    """A fixed, ordered word list; a word's id is its line number and id 0 is the bucket ``<unk>``. n: len(words). A
    language model over the list has n + 1 symbols; the last, id n, is the sentence boundary. Raises ValueError when the
    list does not start with ``<unk>``, repeats a word, or holds an empty word or one with white space in it."""

    words: tuple[str, ...]
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        if not self.words or self.words[0] != UNKNOWN:
            found = repr(self.words[0]) if self.words else "an empty list"
            raise ValueError(f"word list, line 1: found {found}, expected {UNKNOWN!r}")
        index: dict[str, int] = {}
        for line, word in enumerate(self.words):
            if word in index:
                raise ValueError(f"word list, line {line + 1}: {word!r} is already on line {index[word] + 1}")
            if not word or len(word.split()) != 1 or word != word.strip():
                raise ValueError(f"word list, line {line + 1}: found {word!r}, expected one word without white space")
            if word in RESERVED:
                raise ValueError(f"word list, line {line + 1}: {word!r} is reserved for the n-gram's sentence boundary")
            index[word] = line
        object.__setattr__(self, "_index", index)

    @classmethod
    def parse(cls, text: str) -> WordList:
        """Read the text of a ``words.txt``: one word a line, ``<unk>`` first."""
        return cls(tuple(text.splitlines()))

    def text(self) -> str:
        """The text of the list's ``words.txt``; ``parse`` reads it back."""
        return "\n".join(self.words) + "\n"

    @property
    def digest(self) -> str:
        """sha256 (hex) of the list's text: two sides that agree on it count the same words."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @property
    def boundary(self) -> int:
        """The sentence boundary's id, n: a language model's first input and last target."""
        return len(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._index

    def __getitem__(self, word_id: int) -> str:
        return self.words[word_id]

    def id(self, word: str) -> int:
        """The word's id, or 0 for a word that is not on the list."""
        return self._index.get(word, 0)

    def ids(self, text: str | Iterable[str]) -> list[int]:
        """Ids of the words of a text (split at white space) or of a sequence of words; 0 stands for unlisted ones."""
        words = text.split() if isinstance(text, str) else text
        return [self._index.get(word, 0) for word in words]
