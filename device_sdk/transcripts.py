"""Words as they were said: the one form of what apps, users and files give as a transcript or a part of one.

It is the form in which recognizers write: lower-case words, one space apart, of letters and apostrophes. Capitals,
punctuation and how Unicode composes a letter are taken away. What can be said in several ways, as figures and signs, is
refused. Errors never quote a word: messages end up in logs and crash reports."""

from collections.abc import Iterable, Set
from itertools import pairwise
from unicodedata import category, normalize

from device_sdk.errors import IdiolectError

_APOSTROPHES = str.maketrans("‘’‛ʼ`", "'''''")
_SILENT = frozenset('.,;:!?"¡¿·')
_SILENT_KINDS = frozenset({"Pd", "Ps", "Pe", "Pi", "Pf"})
"""Dashes, brackets and quotation marks."""
_ACCENTS = frozenset(map(chr, range(0x300, 0x370)))
"""Marks above and below letters. Those of other scripts' own are vowels, without which a word is another."""


def transcript(text: object, field: str, error: type[IdiolectError]) -> str:
    """The words of a text in their one form: the same for any capitals, punctuation and normal form of Unicode.
    Punctuation parts words ("twenty-five" is two), an apostrophe does not. Raises ``error``, which names the field, for
    what is no text, holds no words, or holds figures or signs."""
    if not isinstance(text, str):
        raise error(f"{field}: found {type(text).__name__}, expected one or more words")
    visible = "".join(each for each in text.translate(_APOSTROPHES) if category(each) != "Cf")
    found: list[str] = []
    strange: set[str] = set()
    for before, each in pairwise(" " + normalize("NFKC", normalize("NFKC", visible).lower())):
        kind = category(each)
        if each == "'" or kind[0] == "L" or (kind[0] == "M" and category(before)[0] in "LM"):
            found.append(each)
        elif each.isspace() or each in _SILENT or kind in _SILENT_KINDS:
            found.append(" ")
        else:
            strange.add(each)
    if strange:
        raise error(
            f"{field}: found {_quoted(strange)}, expected letters; write numbers and signs as they are said, "
            'such as "two percent"'
        )
    words = [word for word in "".join(found).split() if word.strip("'")]
    if not words:
        raise error(f"{field}: found no words, expected one or more words")
    return " ".join(word.strip("'") if word[0] == word[-1] == "'" else word for word in words)


def entries(values: object, field: str, error: type[IdiolectError]) -> tuple[object, ...]:
    """What a list holds. Raises ``error``, which names the field, for a text and for what is no list."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise error(f'{field}: found {type(values).__name__}, expected a list of texts, such as ["one", "two words"]')
    return tuple(values)


def transcripts(values: object, field: str, error: type[IdiolectError]) -> tuple[str, ...]:
    """A list of texts, each in its one form. Raises ``error`` as :func:`entries` and :func:`transcript` do."""
    listed = entries(values, field, error)
    return tuple(transcript(each, f"{field}[{number}]", error) for number, each in enumerate(listed))


def check_letters(text: str, letters: Set[str], field: str, error: type[IdiolectError]) -> None:
    """Raises ``error``, which names the field, for words that hold more than these letters. letters: what the pieces of
    a model can spell, see :attr:`Tokenizer.letters <device_sdk.bundle.bundle.Tokenizer.letters>`."""
    missing = set(text) - letters - {" "}
    if missing:
        raise error(
            f"{field}: found {_quoted(missing)}, expected the letters {''.join(sorted(letters))}, which are all that "
            "this model's pieces can spell; write it in these as it is said"
        )


def in_letters(text: str, letters: Set[str], field: str, error: type[IdiolectError]) -> str:
    """The words of a text as a model writes them: without the accents that its letters lack ("josé" is "jose"). Raises
    ``error`` as :func:`check_letters`."""
    found = unaccented(text, letters)
    check_letters(found, letters, field, error)
    return found


def unaccented(text: str, letters: Set[str]) -> str:
    """A text whose accents are left out where a letter with them is none of these."""
    return "".join(each if each in letters else _bare(each) for each in text)


def _bare(letter: str) -> str:
    return "".join(each for each in normalize("NFKD", letter) if each not in _ACCENTS)


def spelled(texts: Iterable[str], letters: Set[str]) -> list[str]:
    """Those of the texts that a model can spell, in small letters with single blanks, as of :func:`in_letters`."""
    plain = (unaccented(" ".join(each.lower().split()), letters) for each in texts)
    return [each for each in plain if each and letters >= {*each} - {" "}]


def _quoted(characters: Set[str]) -> str:
    return ", ".join(map(repr, sorted(characters)))
