"""A crowd as Common Voice has one: speakers of many accents, a few of whom say much, and some of whom are hardly heard.

Everyone reads digits in French or Italian, one at a time or strings of them. A quarter of the speakers sit in loud
places with bad microphones; how much each says has a heavy tail. F: feature frames (10 ms); M: mel bins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from examples.cohorts import digit_string, keep_speech, sentence
from examples.runner import digest
from server.lab.corpora.acoustics import GENTLE, STRONG, Ranges, draw_scene
from server.lab.corpora.made import Person
from server.lab.corpora.partitions import Item
from server.lab.corpora.roles import Role
from server.lab.corpora.voices import VARIANTS, draw_voice
from server.lab.training.data import Example

Language = Literal["fr", "it"]

_ACCENTS: Mapping[Language, tuple[str, ...]] = {"fr": ("fr", "fr-BE", "fr-CH"), "it": ("it",)}
_LOUD: Ranges = replace(STRONG, noise=1.0, snr_db=(-6.0, 4.0), band=0.8, clip=0.3, gain_db=(-45.0, -25.0))
_FRAME_SECONDS = 0.01
_TAIL = 1.1  # of Pareto's distribution: smaller is heavier


@dataclass(frozen=True, slots=True)
class CrowdScale:
    """speakers, tested: people to learn from, and others to be tested on; held: whom the server alone heard, for its
    step after each round. least, most: sentences of one of them. digits: of a sentence, at most. loud: share of the
    speakers who are hardly heard. bins: of the features, means of as many of the 64 mel bins each."""

    speakers: int = 400
    tested: int = 100
    held: int = 40
    least: int = 3
    most: int = 30
    digits: int = 1
    loud: float = 0.25
    bins: int = 16


@dataclass(frozen=True, slots=True)
class Crowd:
    """Sentences by id: of those who are learned from, of those who are only tested, of the server's own speakers."""

    learned: dict[str, Example] = field(default_factory=dict)
    tested: dict[str, Example] = field(default_factory=dict)
    held: dict[str, Example] = field(default_factory=dict)


def gather(
    language: Language, scale: CrowdScale, seed: int, folder: Path, tell: Callable[[int, int], None] = lambda *_: None
) -> Crowd:
    """What the crowd of a seed says. Made once and kept in ``folder``; a function of the other arguments."""

    def make() -> list[Example]:
        examples, total = [], scale.speakers + scale.tested + scale.held
        for number in range(total):
            examples += _sentences(language, scale, seed, number)
            tell(number + 1, total)
        return examples

    crowd = Crowd()
    path = folder / f"{language}-{seed}-{digest(scale)}.safetensors"
    for place, example in enumerate(keep_speech(path, make)):
        getattr(crowd, example.source.partition("-")[0])[f"{example.source}-{place:06d}"] = example
    return crowd


def items_of(examples: Mapping[str, Example]) -> list[Item]:
    """What a partition is made of."""
    return [Item(name, each.source, _FRAME_SECONDS * len(each.features), "") for name, each in examples.items()]


def _sentences(language: Language, scale: CrowdScale, seed: int, number: int) -> list[Example]:
    """Of one speaker. Those who are tested have voices that nobody else has."""
    tested = 0 <= number - scale.speakers < scale.tested
    group = "learned" if number < scale.speakers else "tested" if tested else "held"
    generator = np.random.default_rng([seed, number, *language.encode()])
    person = _person(language, scale, group, number, generator)
    many = int(min(scale.most, np.ceil(scale.least * (1.0 + generator.pareto(_TAIL)))))
    return [
        sentence(digit_string(generator, language, scale.digits), person, (seed, number, place), scale.bins)
        for place in range(scale.least * 2 if tested else many)
    ]


def _person(language: Language, scale: CrowdScale, group: str, number: int, generator: np.random.Generator) -> Person:
    sets: tuple[Role, ...] = ("heldout",) if group == "tested" else ("base", "devices")
    variants = [variant for each in sets for variant in VARIANTS[each]]
    voice = draw_voice(sets[0], generator, variants[int(generator.integers(len(variants)))])
    accents = _ACCENTS[language]
    voice = replace(voice, accent=accents[int(generator.integers(len(accents)))])
    scene = draw_scene(generator, _LOUD if generator.random() < scale.loud else GENTLE)
    return Person(f"{group}-{number:04d}", voice, scene, None)
