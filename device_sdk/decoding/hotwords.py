"""Phrases that an app expects: names of contacts and devices, boosted while they are recognized.

An Aho-Corasick automaton reads the characters of every piece, so a phrase is found however the pieces split it. N:
states; C: characters; V: pieces, with blank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.bundle import WORD_START, Tokenizer
from device_sdk.checks import NUMBER, check_interval, check_type
from device_sdk.decoding.contextual_biasing import Guide, HotwordAutomaton, Ngram
from device_sdk.decoding.second_look import Phrase, Sought, sought
from device_sdk.errors import ConfigurationError
from device_sdk.hypothesis import Word, in_time
from device_sdk.transcripts import check_letters, entries, transcript

DEFAULT_BOOST = 2.0
LONGEST_PHRASE = 200
"""Letters, with blanks: what a search for phrases costs grows with them, and nobody says as many."""


def phrase_of(text: object, field: str) -> str:
    """A text as :func:`device_sdk.transcripts.transcript` has it. ConfigurationError, which names the field: it is
    none, or too long to be listened for."""
    found = transcript(text, field, ConfigurationError)
    if len(found) > LONGEST_PHRASE:
        raise ConfigurationError(f"{field}: found {len(found)} letters, expected at most {LONGEST_PHRASE}; shorten it")
    return found


def phrases_of(texts: object, field: str) -> tuple[str, ...]:
    """A list of them. ConfigurationError as :func:`phrase_of`, and for what is no list."""
    listed = entries(texts, field, ConfigurationError)
    return tuple(phrase_of(each, f"{field}[{number}]") for number, each in enumerate(listed))


@dataclass(frozen=True, slots=True)
class Hotword:
    """A phrase, what its completion adds to a hypothesis (nats), and other ways to spell it that earn the same. What is
    heard by one of these is the phrase in texts and words; tokens stay what was heard. after: words before it, such as
    "call" before a name, after which an ended utterance is searched for the phrase once more; with a boost of 0 only
    there. known: whether language models know all of its words, and so more must speak for it there. Phrases, spellings
    and what comes before are one or more words, as they are said, of at most 200 letters in all; capitals and
    punctuation are taken away, see :mod:`device_sdk.transcripts`."""

    phrase: str
    boost: float = DEFAULT_BOOST
    spellings: Sequence[str] = ()
    after: Sequence[str] = ()
    known: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "phrase", phrase_of(self.phrase, "hotword.phrase"))
        object.__setattr__(self, "spellings", phrases_of(self.spellings, "hotword.spellings"))
        shared = type(self.after) is tuple and all(type(each) is str for each in self.after)
        checked = _after(self.after) if shared else phrases_of(self.after, "hotword.after")
        object.__setattr__(self, "after", checked)
        check_type("hotword.boost", self.boost, NUMBER, "a number of nats")
        check_interval("hotword.boost", self.boost, "[0, inf)")


@lru_cache(maxsize=16)
def _after(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Thousands of names come after the same words."""
    return phrases_of(texts, "hotword.after")


_Automaton = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], dict[str, int], int]
"""What a :class:`HotwordAutomaton` is made of, but for the tokenizer."""


@dataclass(frozen=True, slots=True)
class Hotwords:
    """Phrases with the automaton that finds them, made once by :meth:`build` and shared by any number of sessions.
    spellings: which phrase is written for what is heard; None where no phrase has another spelling. said: what the user
    said before -> log of how often, which is looked for where an utterance is unsure, and earns nothing before."""

    phrases: tuple[Hotword, ...]
    automaton: _Automaton = field(repr=False, compare=False)
    spellings: Spellings | None = field(default=None, repr=False, compare=False)
    by_tokenizer: WeakKeyDictionary[Tokenizer, HotwordAutomaton] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )
    sought_by_tokenizer: WeakKeyDictionary[Tokenizer, tuple[Sought, ...]] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )
    said: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def build(cls, phrases: Iterable[str | Hotword], boost: float = DEFAULT_BOOST) -> Hotwords:
        """phrases: texts, which get ``boost`` (nats), or hotwords with a boost of their own. A phrase earns its boost
        wherever it stands in a text as whole words; the same words given twice earn the larger boost, phrases inside
        another one earn theirs too. A spelling that is a phrase itself stands for itself, and one that several phrases
        share for the first of them. Raises :class:`ConfigurationError` for what is no phrase."""
        found = tuple(
            each if isinstance(each, Hotword) else Hotword(phrase_of(each, f"hotwords[{number}]"), boost)
            for number, each in enumerate(entries(phrases, "hotwords", ConfigurationError))
        )
        return cls(found, _automaton(found), _spellings(found))

    def guide(self, tokenizer: Tokenizer, ngram: Ngram | None = None) -> Guide:
        """What a search follows that expects these phrases. Raises :class:`ConfigurationError` as ``in_pieces``."""
        return Guide(self.in_pieces(tokenizer), ngram)

    def in_pieces(self, tokenizer: Tokenizer) -> HotwordAutomaton:
        """These phrases in the pieces of a tokenizer. Raises :class:`ConfigurationError` for a phrase without."""
        if tokenizer not in self.by_tokenizer:
            # By number, not by name: phrases may be a user's contacts, and messages end up in logs.
            for number, hotword in enumerate(self.phrases):
                for text in (hotword.phrase, *hotword.spellings):
                    check_letters(text, tokenizer.letters, f"hotwords[{number}]", ConfigurationError)
            self.by_tokenizer[tokenizer] = HotwordAutomaton(*self.automaton, tokenizer)
        return self.by_tokenizer[tokenizer]

    def sought(self, tokenizer: Tokenizer) -> tuple[Sought, ...]:
        """Phrases to look for once more, in the pieces of a tokenizer, by the words that they come after."""
        if tokenizer not in self.sought_by_tokenizer:
            groups: dict[tuple[str, ...], list[Phrase]] = {}
            for each in self.phrases:
                if each.after:
                    spelled = (
                        Phrase(each.phrase, tuple(tokenizer.encode(one)), each.boost, each.known)
                        for one in (each.phrase, *each.spellings)
                    )
                    groups.setdefault(tuple(each.after), []).extend(spelled)
            found = (sought(own, after, tokenizer) for after, own in groups.items())
            self.sought_by_tokenizer[tokenizer] = tuple(found)
        return self.sought_by_tokenizer[tokenizer]

    def __reduce__(self) -> tuple[object, ...]:
        return Hotwords.build, (self.phrases,)


def hotwords_of(hotwords: Hotwords | Iterable[str | Hotword] | None) -> Hotwords | None:
    """What an app passes for hotwords, built where it is not yet."""
    return hotwords if hotwords is None or isinstance(hotwords, Hotwords) else Hotwords.build(hotwords)


def _spellings(phrases: Sequence[Hotword]) -> Spellings | None:
    known = {hotword.phrase: hotword.phrase for hotword in phrases}
    count = len(known)
    for hotword in phrases:
        for spelling in hotword.spellings:
            known.setdefault(spelling, hotword.phrase)
    return Spellings(known) if len(known) > count else None


def _characters(text: str) -> str:
    """A phrase as pieces spell it."""
    return "".join(WORD_START + word for word in text.split())


def _automaton(phrases: Sequence[Hotword]) -> _Automaton:
    boosts: dict[str, dict[int, float]] = {}  # spelling -> {number of the phrase: boost}
    numbers: dict[str, int] = {}
    for hotword in (each for each in phrases if each.boost):
        number = numbers.setdefault(_characters(hotword.phrase), len(numbers))
        for text in (hotword.phrase, *hotword.spellings):
            earned = boosts.setdefault(_characters(text), {})
            earned[number] = max(earned.get(number, 0.0), float(hotword.boost))
    codes = {character: code for code, character in enumerate(sorted({WORD_START, *"".join(boosts)}))}
    width = len(codes)
    # The trie. State 0 has read nothing of use; state 1 the start of a word.
    edges: dict[int, int] = {codes[WORD_START]: 1}
    slopes, depths, ends = [0.0, 0.0], [0, 1], {}
    for text, earned in boosts.items():
        state, slope = 0, max(earned.values()) / (len(text) - 1)
        for character in text:
            key = state * width + codes[character]
            state = edges.get(key, 0)
            if not state:
                state = edges[key] = len(depths)
                depths.append(depths[key // width] + 1)
                slopes.append(0.0)
            if slopes[state] < slope:
                slopes[state] = slope
        ends[state] = earned
    depth = np.array(depths)
    keys, children = np.array(list(edges)), np.array(list(edges.values()), np.int32)
    parents, columns = keys // width, keys % width
    table = np.zeros((len(depth), width), np.int32)
    fallback = np.zeros(len(depth), np.int32)
    advance = np.array(slopes) * np.maximum(depth - 1, 0)
    table[0, codes[WORD_START]] = 1
    order = np.argsort(depth[children], kind="stable")
    bounds = np.searchsorted(depth[children][order], np.arange(1, depth.max() + 2))
    for level, (begin, end) in enumerate(pairwise(bounds.tolist()), 1):
        at = order[begin:end]
        child, parent, column = children[at], parents[at], columns[at]
        if level > 1:
            fallback[child] = table[fallback[parent], column]
        table[parent, column] = child
        table[child] = table[fallback[child]]
        boundary = child[column == codes[WORD_START]]
        table[boundary, codes[WORD_START]] = boundary  # a second word start in a row means nothing
        advance[child] = np.maximum(advance[child], advance[fallback[child]])
    whole = np.zeros(len(depth))
    reached: dict[int, dict[int, float]] = {}
    behind = fallback.tolist()
    for state in np.argsort(depth, kind="stable").tolist():
        before, here = reached.get(behind[state]), ends.get(state)
        if before is not None or here is not None:
            merged = dict(before or {})
            for number, boost in (here or {}).items():
                merged[number] = max(boost, merged.get(number, 0.0))
            reached[state] = merged
            whole[state] = sum(merged.values())
    return table, whole, np.maximum(advance, whole), codes, 1


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


def write_phrases(text: str, spellings: Spellings) -> str:
    """A text with the phrases in place of their spellings."""
    return " ".join(word for _, _, phrase in _read(text.split(), spellings) for word in phrase)


def write_words(words: Sequence[Word], spellings: Spellings) -> tuple[Word, ...]:
    """The same of words with times: those heard, for as many words; else their time, divided by letters."""
    found: list[Word] = []
    for start, stop, phrase in _read([word.text for word in words], spellings):
        heard = words[start:stop]
        if len(phrase) == len(heard):
            found += [replace(word, text=text) for word, text in zip(heard, phrase, strict=True)]
            continue
        found += in_time(phrase, heard[0].start, heard[-1].end)
    return tuple(found)


def settled(text: str, spellings: Spellings) -> str:
    """What is written for a text, as far as nothing that may follow it can change that."""
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
