"""Characters as tokens: what a recognizer of letters writes (Pelikan et al. 2023, section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from device_sdk.bundle.architecture import BLANK
from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Token 0 is blank; token i is ``characters[i - 1]``. A space is the boundary of words."""

    characters: str

    def __post_init__(self) -> None:
        if " " not in self.characters or len(set(self.characters)) != len(self.characters):
            raise ConfigurationError(f"alphabet: found {self.characters!r}, expected distinct ones, and the space")

    @property
    def size(self) -> int:
        """V: the characters and blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in lower case. Characters that are not in the alphabet are boundaries of words."""
        known = "".join(c if c in self.characters else " " for c in text.lower())
        return [self.characters.index(c) + 1 for c in " ".join(known.split())]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, words one space apart; blanks are left out."""
        return " ".join("".join(self.characters[token - 1] for token in tokens if token != BLANK).split())


_ENGLISH = "abcdefghijklmnopqrstuvwxyz '-"
ALPHABETS = {
    "en": Alphabet(_ENGLISH),
    "fr": Alphabet(_ENGLISH + "àâæçéèêëîïôœùûüÿ"),
    "de": Alphabet(_ENGLISH + "äöüß"),
    "it": Alphabet(_ENGLISH + "àèéìíîòóùú"),
}
"""By language: 29 characters for English, with those of French, German and Italian added to them."""
