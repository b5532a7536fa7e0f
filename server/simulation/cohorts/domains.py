"""Two domains: what a base model was trained for, and the new use that devices bring (paper 001, sections 1 and 3).

*General*: sentences of meetings and of assistants, in the mainstream accents of base voices. *Requests*: labelled
assistant sentences, in the voices and accents of devices. A sentence belongs to one stage only, by a hash of its text;
voices are disjoint too, so a test hears neither words in their order nor people that any stage has learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from device_sdk.errors import DataError
from server.corpora.acoustics import GENTLE, Ranges, draw_scene
from server.corpora.made import Person
from server.corpora.voices import MAINSTREAM_ACCENTS, REGIONAL_ACCENTS, VARIANTS, draw_voice
from server.training.pieces import clean, read_sentences

__all__ = ["Domain", "Sentence", "Stage", "general", "people", "read_requests", "requests", "stage_of"]

Stage = Literal["learn", "development", "test"]
"""What a sentence or a voice is for: learned from; to choose settings by; for the figures alone."""

_SHARES: Mapping[Stage, float] = {"learn": 0.75, "development": 0.07, "test": 0.18}
_DEVELOPMENT_VARIANTS = ("f3", "grandpa", "m8")


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
    scenes: Ranges


def stage_of(text: str) -> Stage:
    """The only stage that may use a sentence: a hash of its text, the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"idiolect stage").digest()
    position = int.from_bytes(digest, "big") / 2**64
    bound = 0.0
    for stage, share in _SHARES.items():
        bound += share
        if position < bound:
            return stage
    return "test"


def general(data: Path, longest: int, turns: int, scenes: Ranges = GENTLE, unsaid: Sequence[Sentence] = ()) -> Domain:
    """The first ``turns`` distinct turns of meetings (``ami``) and the assistant sentences of ``slurp/lm.txt``, of 3 to
    ``longest`` words, but for those of ``unsaid``. Raises DataError where a file is missing."""
    path = data / "ami" / "meetings.jsonl"
    meetings = _rows(path, "a meeting a line, with turns")
    known = {sentence.text for sentence in unsaid}

    def kept(lines: Iterable[str]) -> list[str]:
        return [text for text in dict.fromkeys(lines) if 3 <= len(text.split()) <= longest and text not in known]

    said = kept(clean(turn["text"]) for meeting in meetings for turn in meeting["turns"])[:turns]
    texts = dict.fromkeys([*said, *kept(read_sentences(data / "slurp" / "lm.txt"))])
    unseen = VARIANTS["heldout"]
    variants: Mapping[Stage, tuple[str, ...]] = {
        "learn": VARIANTS["base"],
        "development": _DEVELOPMENT_VARIANTS,
        "test": unseen,
    }
    return Domain("general", _staged([Sentence(text) for text in texts]), variants, MAINSTREAM_ACCENTS, scenes)


def requests(data: Path, longest: int, scenes: Ranges = GENTLE) -> Domain:
    """Labelled requests (``slurp/devel.jsonl``) of 2 to ``longest`` words, in regional accents."""
    sentences = [s for s in read_requests(data / "slurp" / "devel.jsonl") if 2 <= len(s.text.split()) <= longest]
    learn = tuple(name for name in VARIANTS["devices"] if name not in _DEVELOPMENT_VARIANTS)
    variants: Mapping[Stage, tuple[str, ...]] = {
        "learn": learn,
        "development": _DEVELOPMENT_VARIANTS,
        "test": VARIANTS["heldout"],
    }
    return Domain("requests", _staged(sentences), variants, REGIONAL_ACCENTS, scenes)


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
    variants = domain.variants[stage]
    dealt = [variants[i] for _ in range(-(-count // len(variants))) for i in generator.permutation(len(variants))]
    found = []
    for number, variant in enumerate(dealt[:count]):
        accent = domain.accents[generator.integers(len(domain.accents))]
        voice = replace(draw_voice("devices", generator, variant), accent=accent)
        found.append(Person(f"{domain.name}-{stage}-{number:04d}", voice, draw_scene(generator, domain.scenes), None))
    return tuple(found)


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
