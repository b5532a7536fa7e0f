"""Text to learn language from, brought into the one form in which speech is written: read from plain files, from
manifests of speech and from transcripts of meetings.

A source is ``PATH`` or ``PATH@ROLE``: of a ``.jsonl`` file only the rows of one role (:mod:`server.lab.corpora.roles`),
where the name of the file's folder is the corpus. Whole meetings are for one role, as whole speakers are."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from device_sdk.checks import read_utf8
from device_sdk.errors import DataError
from server.lab.corpora.readers import DIGITS, read_jsonl
from server.lab.corpora.roles import Role, role_of, voice_of
from server.lab.corpora.utterance import clean

MEETINGS: Mapping[str, Mapping[Role, tuple[str, ...]]] = {
    "ami": {
        "base": ("ES2008", "ES2010", "ES2011", "IS1001", "IS1003", "TS3003", "TS3004", "TS3006"),
        "development": ("ES2006", "IS1002", "TS3011"),
        "devices": ("ES2", "IS1", "TS3"),
    },
    "icsi": {"development": ("Bdb001", "Bmr026", "Bmr027", "Bro027", "Bro028", "Buw001"), "base": ("B",)},
    "crd3": {"base": ("C",)},
}
"""corpus -> role -> how the names of its meetings begin; the first that fits."""

_ONES = (
    *(*DIGITS, "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_POWERS = {10**9: "billion", 10**6: "million", 1000: "thousand", 100: "hundred"}
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ORDINALS |= {"twelve": "twelfth"}
_SIGNS = {"&": " and ", "%": " percent ", "+": " plus ", "@": " at ", "°": " degrees "}
_MARKS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_APART = re.compile(r"(?<=\w) '(?=(?:s|t|m|d|re|ve|ll)\b)")
_FIGURES = re.compile(
    r"(?P<money>[$£€])?(?:(?P<hour>\d{1,2}):(?P<minute>\d\d)(?!\d)|(?P<whole>\d{1,3}(?:,\d{3})+|\d+)"
    r"(?:\.(?P<part>\d+)|(?P<th>st|nd|rd|th)\b)?)"
)
_MONEY = {"$": "dollar", "£": "pound", "€": "euro"}


def cardinal(number: int) -> str:
    """A number below 10^12 as it is said."""
    for power, name in _POWERS.items():
        if number >= power:
            rest = f" {cardinal(number % power)}" if number % power else ""
            return f"{cardinal(number // power)} {name}{rest}"
    return _ONES[number] if number < 20 else f"{_TENS[number // 10]} {_ONES[number % 10]}".removesuffix(" zero")


def ordinal(number: int) -> str:
    """A number as it is said of a place or a day."""
    before, space, last = cardinal(number).rpartition(" ")
    return before + space + (_ORDINALS.get(last) or re.sub("y$", "ie", last) + "th")


def _said(found: re.Match[str]) -> str:
    """Figures as they are said: a time, an ordinal, a decimal, a year, a number, or digit by digit."""
    whole, part, money = (found["whole"] or "").replace(",", ""), found["part"], found["money"]
    if found["hour"]:
        minute = int(found["minute"])
        words = [cardinal(int(found["hour"])), "oh" if 0 < minute < 10 else "", cardinal(minute) if minute else ""]
    elif len(whole) > 12 or (whole[0] == "0" and len(whole) > 1):
        words = [DIGITS[int(digit)] for digit in whole]
    elif found["th"]:
        words = [ordinal(int(whole))]
    elif (
        part is None and not money and "," not in found[0] and (1100 <= int(whole) < 2000 or 2010 <= int(whole) < 2100)
    ):
        century, year = divmod(int(whole), 100)
        words = [
            cardinal(century),
            "hundred" if year == 0 else "oh" if year < 10 else "",
            cardinal(year) if year else "",
        ]
    else:
        words = [cardinal(int(whole)), *(["point", *(DIGITS[int(digit)] for digit in part)] if part else [])]
        words += [_MONEY[money] + "s" * (whole != "1")] if money else []
    return f" {' '.join(words)} "


def written_out(text: str) -> str:
    """English text as it is said: figures and signs as words, without marks in brackets ({pause}, [laughs])."""
    text = re.sub("[&%+@°]", lambda sign: _SIGNS[sign[0]], _MARKS.sub(" ", text))
    words = clean(_APART.sub("'", _FIGURES.sub(_said, text))).split()
    return " ".join(word.strip("'") if word[0] == word[-1] == "'" else word for word in words)


def read_text(source: Path) -> Iterator[str]:
    """The lines of a file, the texts of a manifest (``text`` or ``sentence``), the sentences of meetings (``turns``),
    as they are written. Raises DataError naming file, row and field."""
    name, at, role = source.name.rpartition("@") if "@" in source.name else (source.name, "", "")
    path = source.with_name(name)
    if at and role not in get_args(Role):
        raise DataError(f"{source}: found role {role!r}, expected one of {', '.join(get_args(Role))}")
    if not path.is_file():
        raise DataError(f"{path}: no such text file; expected one sentence a line")
    if path.suffix != ".jsonl":
        if at:
            raise DataError(f"{source}: a plain file has no roles; give a .jsonl file, or leave {at}{role} out")
        yield from read_utf8(path, DataError).splitlines()
        return
    for number, row in enumerate(read_jsonl(path), 1):
        if role in ("", _role(path.parent.name, row)):
            yield from _texts(row, f"{path}, row {number}")


def _role(corpus: str, row: Mapping[str, Any]) -> Role:
    meeting = str(row.get("meeting", ""))
    for role, names in MEETINGS.get(corpus, {}).items():
        if meeting.startswith(names):
            return role
    return role_of(corpus, voice_of(corpus, str(meeting or row.get("speaker") or row.get("id")), row.get("text")))


def _texts(row: Mapping[str, Any], where: str) -> list[str]:
    turns = row.get("turns")
    found = [turn.get("text") for turn in turns] if isinstance(turns, list) else [row.get("text", row.get("sentence"))]
    if not all(isinstance(text, str) for text in found):
        raise DataError(f"{where}: expected text, sentence, or turns with text in each")
    return [part for text in found for part in re.split(r"(?<=[.?!])\s", text)] if turns else found
