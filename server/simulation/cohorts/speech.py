"""What a cohort says: clips of a domain's sentences by its people, made once and kept as features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.features.logmel import logmel
from server.corpora.made import say
from server.simulation.cohorts.domains import Domain, Sentence, Stage, people
from server.training.data import Example, read_shard, write_shard

__all__ = ["Clip", "clips", "clips_each", "kept"]


@dataclass(frozen=True, slots=True)
class Clip:
    """features: [F, M] float16 raw log-mel; sentence: what was said; person: who said it."""

    features: NDArray[np.float16]
    sentence: Sentence
    person: str


def clips(
    domain: Domain,
    stage: Stage,
    persons: int,
    count: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> list[Clip]:
    """``count`` clips in the order of time: every one by a random person of the stage, and a random sentence of it."""
    generator = np.random.default_rng([seed, *domain.name.encode(), *stage.encode()])
    cast = people(domain, stage, persons, generator)
    sentences = domain.sentences[stage]
    found = []
    for number in range(count):
        person = cast[generator.integers(len(cast))]
        sentence = sentences[generator.integers(len(sentences))]
        waveform = say(sentence.text, person, (seed, number))
        found.append(Clip(logmel(waveform).astype(np.float16), sentence, person.name))
        tell(number + 1, count)
    return found


def clips_each(
    domain: Domain,
    stage: Stage,
    persons: int,
    count: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> list[Clip]:
    """``count`` clips that go through the people and the sentences of a stage in turn: what a test hears."""
    generator = np.random.default_rng([seed, *domain.name.encode(), *stage.encode()])
    cast = people(domain, stage, persons, generator)
    order = [int(i) for i in generator.permutation(len(domain.sentences[stage]))]
    found = []
    for number in range(count):
        person, sentence = cast[number % len(cast)], domain.sentences[stage][order[number % len(order)]]
        waveform = say(sentence.text, person, (seed, number))
        found.append(Clip(logmel(waveform).astype(np.float16), sentence, person.name))
        tell(number + 1, count)
    return found


def kept(path: Path, sentences: Sequence[Sentence], make: Callable[[], list[Clip]]) -> list[Clip]:
    """The clips in a file, which is made first where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, [Example(clip.features, clip.sentence.text, clip.person) for clip in make()])
    known = {sentence.text: sentence for sentence in sentences}
    return [
        Clip(example.features.astype(np.float16, copy=False), known[example.text], example.source)
        for example in read_shard(path)
    ]
