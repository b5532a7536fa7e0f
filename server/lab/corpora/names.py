"""Names of people that a word list lacks, to be called: given and family names of several countries (Faker's lists)."""

import re
import unicodedata
from importlib import import_module

import numpy as np

from device_sdk.errors import DataError, MissingExtraError
from rescoring.words import WordList

COUNTRIES = ("en_US", "en_GB", "en_IN", "de_DE", "it_IT", "es_ES", "fr_FR", "pl_PL", "nl_NL", "sv_SE")
_LISTS = ("first_names", "first_names_female", "first_names_male", "last_names")


def unlisted_names(words: WordList) -> list[str]:
    """All names of 4 to 9 letters that the list lacks, sorted; accents are left out. MissingExtraError: no Faker."""
    found: set[str] = set()
    for country in COUNTRIES:
        try:
            provider = import_module(f"faker.providers.person.{country}").Provider
        except ImportError as error:
            raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[simulate]'") from error
        for name in (name for kind in _LISTS for name in getattr(provider, kind, ())):
            plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
            if re.fullmatch("[a-z]{4,9}", plain) and plain not in words:
                found.add(plain)
    return sorted(found)


def draw_names(words: WordList, count: int, generator: np.random.Generator) -> list[str]:
    """``count`` different ones. DataError: there are not so many."""
    known = unlisted_names(words)
    if count > len(known):
        raise DataError(f"names: found {len(known)} outside the word list, expected at least {count}")
    return [known[place] for place in generator.choice(len(known), count, replace=False)]
