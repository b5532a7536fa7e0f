"""Names of people that a word list lacks, to be called: given and family names of several countries (Faker's lists)."""

import re
import unicodedata
from importlib import import_module

import numpy as np

from device_sdk.errors import DataError, MissingExtraError
from device_sdk.feedback.distance import edit_distance
from rescoring.words import WordList

COUNTRIES = ("en_US", "en_GB", "en_IN", "de_DE", "it_IT", "es_ES", "fr_FR", "pl_PL", "nl_NL", "sv_SE")
_LISTS = ("first_names", "first_names_female", "first_names_male", "last_names")


def _all_names() -> set[str]:
    """Those of 4 to 9 letters, accents left out. MissingExtraError: no Faker."""
    found: set[str] = set()
    for country in COUNTRIES:
        try:
            provider = import_module(f"faker.providers.person.{country}").Provider
        except ImportError as error:
            raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[simulate]'") from error
        for name in (name for kind in _LISTS for name in getattr(provider, kind, ())):
            plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
            if re.fullmatch("[a-z]{4,9}", plain):
                found.add(plain)
    return found


def unlisted_names(words: WordList) -> list[str]:
    """All names that the list lacks, sorted."""
    return sorted(name for name in _all_names() if name not in words)


def neighbours(words: WordList, count: int, generator: np.random.Generator) -> list[tuple[str, str]]:
    """``count`` pairs of a name that the list has, the most frequent first, and one that it lacks, which begin alike
    and differ in two letters at most: who says the first must not be heard as the second."""
    pairs: list[tuple[str, str]] = []
    names = _all_names()
    others = sorted(name for name in names if name not in words)
    for name in sorted((name for name in names if name in words), key=lambda name: words.ids(name)[0]):
        near = [other for other in others if other[0] == name[0] and edit_distance(other, name) <= 2]
        if near:
            pairs.append((name, near[int(generator.integers(len(near)))]))
        if len(pairs) == count:
            return pairs
    raise DataError(f"names: found {len(pairs)} pairs that are near, expected at least {count}")


def draw_names(words: WordList, count: int, generator: np.random.Generator) -> list[str]:
    """``count`` different ones. DataError: there are not so many."""
    known = unlisted_names(words)
    if count > len(known):
        raise DataError(f"names: found {len(known)} outside the word list, expected at least {count}")
    return [known[place] for place in generator.choice(len(known), count, replace=False)]
