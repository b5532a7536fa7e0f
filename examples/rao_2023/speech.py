"""What a cohort says: clips of a domain's sentences by its people, made once and kept as features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.features.logmel import logmel
from examples.cohorts import keep_speech
from examples.rao_2023.domains import Domain, Sentence, Stage, people
from server.lab.corpora.made import Person, say
from server.lab.training.data import Example

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Clip:
    """features: [F, M] float16 raw log-mel; sentence: what was said; person: who said it."""

    features: NDArray[np.float16]
    sentence: Sentence
    person: str


class Said:
    """What the people of the stage that learns say, in the order of time: every clip by a random one of them, a random
    sentence. Made in chunks when they are first asked for, each a function of (seed, chunk), and kept in ``folder``,
    or, where that is None, forgotten once the next one is needed: years of speech fit on no disk."""

    CHUNK = 480

    def __init__(
        self, domain: Domain, persons: int, total: int, seed: int, folder: Path | None, tell: Told = lambda *_: None
    ) -> None:
        self.domain, self.total, self.seed, self.folder, self.tell = domain, total, seed, folder, tell
        self.cast = people(domain, "learn", persons, _generator(domain, "learn", seed))
        self._held: dict[int, list[Clip]] = {}

    def __getitem__(self, places: slice) -> list[Clip]:
        every = range(*places.indices(self.total))
        return [self._chunk(place // self.CHUNK)[place % self.CHUNK] for place in every]

    def _chunk(self, number: int) -> list[Clip]:
        if number not in self._held:
            if self.folder is None:
                self._held = {number: self._make(number)}
            else:
                size = min(self.CHUNK, self.total - number * self.CHUNK)
                part = "" if size == self.CHUNK else f"-{size}"  # the last one; who asks for more makes more
                path = self.folder / f"{self.domain.name}-learn-{self.seed}-{number:05d}{part}.safetensors"
                sentences = self.domain.sentences["learn"]
                self._held[number] = keep_clips(path, sentences, lambda: self._make(number))
        return self._held[number]

    def _make(self, number: int) -> list[Clip]:
        generator, sentences = _generator(self.domain, "learn", self.seed, number + 1), self.domain.sentences["learn"]
        found = []
        for place in range(number * self.CHUNK, min((number + 1) * self.CHUNK, self.total)):
            person = self.cast[generator.integers(len(self.cast))]
            found.append(_clip(sentences[generator.integers(len(sentences))], person, (self.seed, place)))
            self.tell(place + 1, self.total)
        return found


def clips_each(
    domain: Domain, stage: Stage, persons: int, count: int, seed: int, tell: Told = lambda *_: None
) -> list[Clip]:
    """``count`` clips that go through the people and the sentences of a stage in turn: what a test hears."""
    generator = _generator(domain, stage, seed)
    cast, sentences = people(domain, stage, persons, generator), domain.sentences[stage]
    order = generator.permutation(len(sentences))
    found = []
    for number in range(count):
        found.append(_clip(sentences[order[number % len(order)]], cast[number % len(cast)], (seed, number)))
        tell(number + 1, count)
    return found


def _generator(domain: Domain, stage: Stage, seed: int, *number: int) -> np.random.Generator:
    return np.random.default_rng([seed, *domain.name.encode(), *stage.encode(), *number])


def _clip(sentence: Sentence, person: Person, seed: tuple[int, ...]) -> Clip:
    return Clip(logmel(say(sentence.text, person, seed)).astype(np.float16), sentence, person.name)


def keep_clips(path: Path, sentences: Sequence[Sentence], make: Callable[[], list[Clip]]) -> list[Clip]:
    """The clips in a file, which is made first where there is none."""
    known = {sentence.text: sentence for sentence in sentences}
    examples = keep_speech(path, lambda: [Example(clip.features, clip.sentence.text, clip.person) for clip in make()])
    return [Clip(each.features.astype(np.float16, copy=False), known[each.text], each.source) for each in examples]
