"""Two domains: what a base model was trained for, and the new use that devices bring (Rao et al. 2023, sections 1 and
3).

*General*: sentences of meetings and of assistants, by base voices in quiet places. *Requests*: labelled assistant
sentences, by the voices of devices over a narrow band. A sentence belongs to one stage only, by a hash of its text;
voices are disjoint too, so a test hears neither words in their order nor people that any stage has learned from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from device_sdk.errors import DataError
from server.lab.corpora.acoustics import GENTLE, Ranges, draw_scene
from server.lab.corpora.grammar import assign
from server.lab.corpora.made import Person
from server.lab.corpora.utterance import clean
from server.lab.corpora.voices import Voice
from server.lab.training.pieces import read_sentences

__all__ = [
    "Domain",
    "Sentence",
    "Stage",
    "general",
    "newly_frequent",
    "people",
    "read_requests",
    "requests",
    "says_any",
    "stage_of",
]

Ngram = tuple[str, ...]

Stage = Literal["learn", "development", "test"]
"""What a sentence or a voice is for: learned from; to choose settings by; for the figures alone."""

_ACCENTS = ("en-us",)
_SHARES: Mapping[Stage, float] = {"learn": 0.75, "development": 0.07, "test": 0.18}

_GENERAL_VARIANTS = ("f1", "f2", "f4", "m1", "m2", "m4", "m6", "m7", "Alex", "adam", "david", "edward", "paul", "steph")
# Of the variants that base training never heard, those that a base model makes out: below a fifth of the words wrong
# on general development sentences. The others are robots and caricatures that no adaptation is about.
_REQUESTS_VARIANTS = ("Andrea", "Nguyen", "ed", "grandpa", "m3", "pablo")
_DEVELOPMENT_VARIANTS = ("Storm", "robert")
_TEST_VARIANTS = ("Annie", "Mike", "belinda", "f5", "linda", "m5", "mike2", "pedro")

QUIET = replace(
    GENTLE, reverb=0.0, snr_db=(25.0, 45.0), eq_db=1.0, tilt_db=0.5, band=0.0, hum=0.0, edges_seconds=(0.1, 0.3)
)
"""A headset in a quiet place."""

NARROW = replace(QUIET, band=1.0, low_hz=(300.0, 400.0), high_hz=(2400.0, 2800.0))
"""The same through a line that lets less pass than most telephones."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How differently people speak: ranges of :class:`server.lab.corpora.voices.Voice`."""

    pitch: tuple[int, int] = (40, 60)
    rate: tuple[int, int] = (140, 175)
    pitch_range: tuple[int, int] = (40, 60)
    tract: tuple[float, float] = (0.97, 1.04)


@dataclass(frozen=True, slots=True)
class Sentence:
    """text: lower-case words. slots: slot -> value; a type that a sentence names twice is numbered from 2."""

    text: str
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Domain:
    """Who says what where. sentences, variants (espeak's speakers): of each stage. scenes: rooms and microphones."""

    name: str
    sentences: Mapping[Stage, tuple[Sentence, ...]]
    variants: Mapping[Stage, tuple[str, ...]]
    accents: tuple[str, ...]
    scenes: Ranges = QUIET
    manner: Manner = Manner()


def stage_of(text: str) -> Stage:
    """The only stage that may use a sentence: a hash of its text, the same on every machine."""
    return assign(text, _SHARES, b"idiolect stage")


def general(data: Path, longest: int, turns: int, least: int = 3, unsaid: Sequence[Sentence] = ()) -> Domain:
    """The first ``turns`` distinct turns of meetings (``ami``) and the assistant sentences of ``slurp/lm.txt``, of 3 to
    ``longest`` words, each of which is said ``least`` times, but for those of ``unsaid``.

    Raises DataError where a file is missing.
    """
    path = data / "ami" / "meetings.jsonl"
    meetings = _rows(path, "a meeting a line, with turns")
    known = {sentence.text for sentence in unsaid}

    def kept(lines: Iterable[str]) -> list[str]:
        return [text for text in dict.fromkeys(lines) if 3 <= len(text.split()) <= longest and text not in known]

    said = kept(clean(turn["text"]) for meeting in meetings for turn in meeting["turns"])[:turns]
    texts = list(dict.fromkeys([*said, *kept(read_sentences(data / "slurp" / "lm.txt"))]))
    sentences = _of_words([Sentence(text) for text in texts], _frequent(texts, least))
    return Domain("general", _staged(sentences), _variants(_GENERAL_VARIANTS), _ACCENTS)


def requests(data: Path, longest: int, before: Domain, least: int = 3) -> Domain:
    """Labelled requests (``slurp/devel.jsonl``) of 2 to ``longest`` words, by other voices, over a narrow band.

    Their words are those that the sentences of ``before`` say ``least`` times: names of people and of places that occur
    once are no matter of learning.
    """
    known = _frequent([sentence.text for sentence in before.sentences["learn"]], least)
    found = [s for s in read_requests(data / "slurp" / "devel.jsonl") if 2 <= len(s.text.split()) <= longest]
    return Domain("requests", _staged(_of_words(found, known)), _variants(_REQUESTS_VARIANTS), _ACCENTS, NARROW)


def _frequent(texts: Iterable[str], least: int) -> set[str]:
    counts = Counter(word for text in texts if stage_of(text) == "learn" for word in text.split())
    return {word for word, count in counts.items() if count >= least}


def _of_words(sentences: Iterable[Sentence], words: set[str]) -> list[Sentence]:
    return [sentence for sentence in sentences if words.issuperset(sentence.text.split())]


def read_requests(path: Path) -> list[Sentence]:
    """The distinct sentences of SLURP with the values of their entities. Raises DataError naming file and line."""
    found: dict[str, Sentence] = {}
    for number, row in enumerate(_rows(path, "one of SLURP's sentences a line"), 1):
        try:
            words = [token["surface"] for token in row["tokens"]]
            slots: dict[str, str] = {}
            for entity in row["entities"]:
                value = clean(" ".join(words[place] for place in entity["span"]))
                kind, count = entity["type"], 2
                while kind in slots:
                    kind, count = f"{entity['type']} {count}", count + 1
                if value:
                    slots[kind] = value
            text = clean(row["sentence"])
        except (KeyError, IndexError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error!r}; expected SLURP's sentence, tokens, entities") from error
        if text and not any(letter.isdigit() for letter in row["sentence"]):
            found.setdefault(text, Sentence(text, slots))
    return list(found.values())


def people(domain: Domain, stage: Stage, count: int, generator: np.random.Generator) -> tuple[Person, ...]:
    """``count`` people of a stage, each with one voice and one scene for life; variants are dealt round."""
    variants, manner = domain.variants[stage], domain.manner
    dealt = [variants[i] for _ in range(-(-count // len(variants))) for i in generator.permutation(len(variants))]
    found = []
    for number, variant in enumerate(dealt[:count]):
        accent = domain.accents[generator.integers(len(domain.accents))]
        voice = Voice(
            accent,
            variant,
            pitch=int(generator.integers(*manner.pitch)),
            rate=int(generator.integers(*manner.rate)),
            pitch_range=int(generator.integers(*manner.pitch_range)),
            tract=float(np.round(generator.uniform(*manner.tract), 3)),
        )
        found.append(Person(f"{domain.name}-{stage}-{number:04d}", voice, draw_scene(generator, domain.scenes), None))
    return tuple(found)


def _variants(learn: tuple[str, ...]) -> dict[Stage, tuple[str, ...]]:
    return {"learn": learn, "development": _DEVELOPMENT_VARIANTS, "test": _TEST_VARIANTS}


def _staged(sentences: Sequence[Sentence]) -> dict[Stage, tuple[Sentence, ...]]:
    return {stage: tuple(s for s in sentences if stage_of(s.text) == stage) for stage in _SHARES}


def _rows(path: Path, expected: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {expected}")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); expected {expected}") from error
    return rows


def newly_frequent(
    before: Iterable[str], now: Iterable[str], factor: float = 5.0, longest: int = 3, least: int = 3
) -> frozenset[Ngram]:
    """n-grams of one to ``longest`` words that are at least ``factor`` times as frequent now as before (Rao et al.
    2023's *Delta* test sets, section 3).

    Frequency is the share among n-grams of the same length; what was never said before counts as said half a time.
    least: times that an n-gram must have been said now, below which its frequency means little.
    """
    old, new = _counts(before, longest), _counts(now, longest)
    frequent: set[Ngram] = set()
    for order in range(1, longest + 1):
        all_old, all_new = max(1, old[order].total()), max(1, new[order].total())
        for ngram, count in new[order].items():
            if count >= least and count / all_new >= factor * max(old[order][ngram], 0.5) / all_old:
                frequent.add(ngram)
    return frozenset(frequent)


def says_any(text: str, ngrams: frozenset[Ngram], longest: int = 3) -> bool:
    """Whether a text holds one of the n-grams."""
    words = text.split()
    return any(
        tuple(words[start : start + order]) in ngrams
        for order in range(1, longest + 1)
        for start in range(len(words) - order + 1)
    )


def _counts(texts: Iterable[str], longest: int) -> dict[int, Counter[Ngram]]:
    counts: dict[int, Counter[Ngram]] = {order: Counter() for order in range(1, longest + 1)}
    for text in texts:
        words = text.split()
        for order, counter in counts.items():
            counter.update(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
    return counts
