"""How words sound: phones of American English by espeak-ng's rules, a helper of training alone."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.lab.corpora.voices import espeak, phonemes

_STRESS = re.compile(r"[',%=|\-]+")


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """symbols: names of phones; 0 is blank. words: word -> indices of its phones."""

    symbols: tuple[str, ...]
    words: Mapping[str, tuple[int, ...]]

    def encode(self, text: str) -> list[int]:
        """The phones of a text, word by word. Raises KeyError for a word that is not known."""
        return [phone for word in text.split() for phone in self.words[word]]


def pronounce(words: Iterable[str]) -> Pronunciations:
    """How each of some words sounds alone, without stress. Raises MissingExtraError where there is no espeak-ng."""
    spoken: dict[str, list[str]] = {}
    with espeak() as (library, _):
        library.espeak_SetVoiceByName(b"en-us")
        for word in sorted(set(words)):
            names = _STRESS.sub("", phonemes(library, word, "_"))
            spoken[word] = [name for name in re.split(r"[_ ]+", names) if name]
    symbols = sorted({name for names in spoken.values() for name in names})
    index = {name: number for number, name in enumerate(symbols, 1)}
    return Pronunciations(("", *symbols), {word: tuple(index[n] for n in names) for word, names in spoken.items()})
