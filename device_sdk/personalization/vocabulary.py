"""The personal vocabulary: phrases that an app or its user gave, and words that corrections brought.

Frozen data; every function returns another one. All of it stays on the device."""

from __future__ import annotations

import json
import quopri
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from typing import Literal, get_args
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import check_type, reading
from device_sdk.decoding.hotwords import LONGEST_PHRASE, phrase_of, phrases_of
from device_sdk.errors import ConfigurationError
from device_sdk.transcripts import in_letters
from rescoring.words import WordList

Source = Literal["app", "contacts", "correction"]
LIMIT = 10_000
"""Phrases of a device; the oldest words of corrections make room."""
_LONGEST_KIND = 60
_RARE = 4.0
"""A listed word that others say at most so many times as often as the rarest is as good as none."""
_LONGEST = 3
"""Words that are heard in place of one."""
_QUOTED = "QUOTED-PRINTABLE"


@dataclass(frozen=True, slots=True)
class VocabularyEntry:
    """A phrase of the user's. phrase: as it is written, lower-case words. spellings: other words as which it is heard.
    kind: the app's word for what it is, of at most 60 characters. source: the app, a list of contacts, or a correction.
    added: time of the day (s). refused: spellings that a correction brought, and a later one took back. count: in how
    many utterances the user confirmed it, as far as they are counted."""

    phrase: str
    spellings: tuple[str, ...] = ()
    kind: str = ""
    source: Source = "app"
    added: float = 0.0
    refused: tuple[str, ...] = ()
    count: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "phrase", phrase_of(self.phrase, "vocabulary.phrase"))
        for name in ("spellings", "refused"):
            own = phrases_of(getattr(self, name), f"vocabulary.{name}")
            object.__setattr__(self, name, tuple(dict.fromkeys(each for each in own if each != self.phrase)))
        _check_kind(self.kind)
        if self.source not in get_args(Source):
            known = ", ".join(get_args(Source))
            raise ConfigurationError(f"vocabulary.source: found {self.source!r}, expected one of {known}")


def _check_kind(kind: str) -> None:
    """Here, as every entry comes by: what UTF-8 cannot write would be stored, and then never be shown again."""
    check_type("vocabulary.kind", kind, str, "a text")
    if len(kind) > _LONGEST_KIND:
        found = f"{len(kind)} characters, expected at most {_LONGEST_KIND}"
        raise ConfigurationError(f"vocabulary.kind: found {found}; shorten it")
    strange = sorted({each for each in kind if category(each) in ("Cc", "Cs")})
    if strange:
        found = ", ".join(map(repr, strange))
        raise ConfigurationError(
            f"vocabulary.kind: found {found}, expected text without control characters and halves of surrogate pairs; "
            "leave them out"
        )


@dataclass(frozen=True, slots=True)
class Correction:
    """What the last correction changed. before: phrase -> the entry as it was, None where there was none."""

    utterance_id: str
    before: Mapping[str, VocabularyEntry | None]


@dataclass(frozen=True, slots=True)
class Phrases:
    """A user's vocabulary. entries: by phrase, in the order in which they came. last: for undoing."""

    entries: Mapping[str, VocabularyEntry] = field(default_factory=dict)
    last: Correction | None = None


def with_entries(known: Phrases, new: Sequence[VocabularyEntry]) -> Phrases:
    """The vocabulary with these, too. Who is there already keeps its time, and what was refused of it, and takes on the
    new spellings; a refused one only where app or user gives it. ConfigurationError: more than there may be."""
    entries = dict(known.entries)
    for each in new:
        before = entries.get(each.phrase)
        if before is not None:
            learned = each.source == "correction"
            new_ones = tuple(one for one in each.spellings if not (learned and one in before.refused))
            each = replace(
                each,
                spellings=(*before.spellings, *new_ones),
                kind=each.kind or before.kind,
                source=before.source if learned else each.source,
                added=before.added,
                refused=tuple(one for one in before.refused if one not in new_ones),
            )
        entries[each.phrase] = each
    of_corrections = [phrase for phrase, each in entries.items() if each.source == "correction"]
    for phrase in of_corrections[: max(0, len(entries) - LIMIT)]:
        del entries[phrase]
    if len(entries) > LIMIT:
        raise ConfigurationError(f"vocabulary: found {len(entries)} phrases, expected at most {LIMIT}; remove some")
    added = {each.phrase for each in new if each.source != "correction"}
    return Phrases(entries, _kept(known.last, added))


def without(known: Phrases, phrase: str) -> Phrases:
    """The vocabulary without a phrase."""
    last = _kept(known.last, {phrase})
    return Phrases({name: each for name, each in known.entries.items() if name != phrase}, last)


def _kept(last: Correction | None, phrases: Set[str]) -> Correction | None:
    """The last correction, but for what it did to phrases that were added or removed since: that is not undone."""
    if last is None:
        return None
    return replace(last, before={name: each for name, each in last.before.items() if name not in phrases})


def corrected(
    known: Phrases,
    utterance_id: str,
    served: str,
    literal: str,
    text: str,
    words: WordList,
    background: NDArray[np.float64],
    now: float,
) -> Phrases:
    """The vocabulary after the user gave the words of an utterance. Words of ``text`` outside the public list are the
    user's own from here on, but for those too long to be listened for. What was heard in place of one, where nobody
    says it and it is no phrase of theirs, is another spelling of it: who is heard so once is heard so again. A phrase
    that was served where the user meant something else loses the spelling as which it was heard. Another correction of
    the same utterance takes the place of what the one before made of it. served: the text that the app had; literal:
    the words that its tokens spell, which differ from it where a spelling stood for a phrase. background: u of eq. 1 of
    Liu & Peng 2020 [n]. now: time of the day (s)."""
    if known.last is not None and known.last.utterance_id == utterance_id:
        known = undone(known)
    given: dict[str, VocabularyEntry] = {}
    for heard, said in differences(served.split(), text.split()):
        for place, word in enumerate(said):
            if word not in words and len(word) <= LONGEST_PHRASE:
                spelling = " ".join(heard if len(said) == 1 else heard[place : place + 1] * (len(heard) == len(said)))
                new = 0 < len(spelling) <= LONGEST_PHRASE and spelling not in known.entries
                known_as = (spelling,) if new and _rare(spelling, words, background) else ()
                given[word] = VocabularyEntry(word, known_as, source="correction", added=now)
    contradicted: dict[str, VocabularyEntry] = {}
    meant, heard_as = f" {text} ", f" {literal} "
    for phrase, entry in known.entries.items():
        if f" {phrase} " in f" {served} " and f" {phrase} " not in meant:
            wrong = tuple(each for each in entry.spellings if f" {each} " in heard_as)
            if wrong:
                kept = tuple(each for each in entry.spellings if each not in wrong)
                contradicted[phrase] = replace(entry, spellings=kept, refused=(*entry.refused, *wrong))
    before = {phrase: known.entries.get(phrase) for phrase in (*given, *contradicted)}
    after = with_entries(replace(known, entries={**known.entries, **contradicted}), [*given.values()])
    return replace(after, last=Correction(utterance_id, before))


def undone(known: Phrases) -> Phrases:
    """The vocabulary as it was before the last correction."""
    if known.last is None:
        return known
    before = {**known.entries, **known.last.before}
    return Phrases({phrase: each for phrase, each in before.items() if each is not None})


def differences(heard: Sequence[str], said: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Where two texts differ: (words that were heard, words that were said) of each place."""
    for kind, i, j, k, m in SequenceMatcher(None, heard, said, autojunk=False).get_opcodes():
        if kind != "equal":
            yield list(heard[i:j]), list(said[k:m])


def _rare(spelling: str, words: WordList, background: NDArray[np.float64]) -> bool:
    """Whether nobody says this: at most three words, each unlisted or as rare as any, or several of which one is."""
    ids = words.ids(spelling)
    rare = [not word or background[word] <= _RARE * background.min() for word in ids]
    return len(ids) <= _LONGEST and any(rare)


def read_contacts(text: str) -> list[str]:
    """The names of a vCard file (versions 2.1 to 4.0), in order: ``FN``, and the given name where ``N`` has one.
    ConfigurationError: no vCard, or one without a name."""
    names: list[str] = []
    cards = 0
    for line in _unfolded(text.removeprefix("\ufeff")):
        head, colon, value = line.partition(":")
        field_, *parameters = head.upper().split(";")
        field_ = field_.rpartition(".")[2]
        cards += field_ == "BEGIN" and value.strip().upper() == "VCARD"
        if not colon or field_ not in ("FN", "N"):
            continue
        if any(_QUOTED in parameter for parameter in parameters):
            value = quopri.decodestring(value.encode()).decode("utf-8", "replace")
        parts = [part.replace("\\,", ",").strip() for part in value.split(";")]
        names += parts[:1] if field_ == "FN" else parts[1:2]
    names = list(dict.fromkeys(name for name in names if name))
    if not cards or not names:
        raise ConfigurationError("contacts: found no vCard with a name, expected BEGIN:VCARD and lines FN or N in it")
    return names


def _unfolded(text: str) -> Iterator[str]:
    """The lines of a vCard as they were before some were broken in two: before a blank, or by a "=" at the end where
    the value is quoted-printable; elsewhere that is the value's own."""
    line = ""
    for each in text.replace("\r\n", "\n").split("\n"):
        if line.endswith("=") and _QUOTED in line.partition(":")[0].upper():
            line = line[:-1] + each
        elif each.startswith((" ", "\t")):
            line += each[1:]
        else:
            yield line
            line = each
    yield line


def contact_entries(text: str, letters: Set[str]) -> list[VocabularyEntry]:
    """The names of a vCard file as phrases, those that a model with these letters can spell. ConfigurationError: as
    :func:`read_contacts`."""
    names = dict.fromkeys(spelled(name, letters) for name in read_contacts(text))
    return [VocabularyEntry(name, kind="contact", source="contacts") for name in names if name]


def spelled(name: str, letters: Set[str]) -> str | None:
    """A name in the letters of a model, without accents that it lacks; None where it has others, or too many."""
    try:
        return in_letters(phrase_of(name, "contacts"), letters, "contacts", ConfigurationError)
    except ConfigurationError:
        return None


def times(phrase: str, confirmed: Mapping[str, float]) -> int:
    """In how many utterances the user confirmed a phrase, at most: each of its words."""
    return round(min(confirmed.get(word, 0.0) for word in phrase.split()))


def to_bytes(known: Phrases) -> bytes:
    """JSON, for encrypted storage on the device."""
    last = None
    if known.last is not None:
        before = {name: None if each is None else asdict(each) for name, each in known.last.before.items()}
        last = [known.last.utterance_id, before]
    return json.dumps({"entries": [asdict(each) for each in known.entries.values()], "last": last}).encode()


def from_bytes(content: bytes | None) -> Phrases:
    """What was stored; an empty vocabulary where nothing was. StateError: unreadable."""
    if content is None:
        return Phrases()
    with reading("counts/vocabulary"):
        try:
            fields = json.loads(content)
            entries = {each.phrase: each for each in map(_entry, fields["entries"])}
            last = None
            if fields["last"] is not None:
                utterance_id, before = fields["last"]
                old = {str(name): None if each is None else _entry(each) for name, each in before.items()}
                last = Correction(str(utterance_id), old)
        except ConfigurationError as error:
            raise ValueError from error
    return Phrases(entries, last)


def _entry(fields: Mapping[str, object]) -> VocabularyEntry:
    return VocabularyEntry(**fields)  # type: ignore[arg-type]
