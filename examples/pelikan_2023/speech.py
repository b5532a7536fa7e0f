"""Who dictates what: strings of digits by made voices, as clients, as a server's own speech, and as tests.

The server's voices and the clients' are of disjoint sets of speakers, and the server's have no regional accent, so that
a seed model meets another domain (Pelikan et al. 2023, section 5.3). Tests are of the clients' domain, by others."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from examples.cohorts import digit_string, keep_speech, sentence
from examples.runner import digest
from server.lab.corpora.made import draw_people
from server.lab.corpora.roles import Role
from server.lab.simulation.engine.population import reassign
from server.lab.training.data import Example

Voices = tuple[tuple[Example, ...], ...]
_OTHERS = 1 << 20  # added to the seed that decides who the people of a test are


@dataclass(frozen=True, slots=True)
class SpokenScale:
    """How much is said. clients, server, tested: voices; each: sentences of a voice, from half as many to half as many
    more; digits: of a sentence, at most; bins: of the features."""

    clients: int = 256
    server: int = 40
    tested: int = 120
    each: int = 6
    digits: int = 1
    bins: int = 16


@dataclass(frozen=True, slots=True)
class Speech:
    """Sentences of every voice: of clients, of the server, and of a test by people whom nobody learned from."""

    clients: Voices
    server: Voices
    tested: Voices


def dictate(scale: SpokenScale, seed: int, folder: Path, tell: Callable[[int, int], None] = lambda *_: None) -> Speech:
    """What everyone says. Made once and kept in ``folder``; a function of scale and seed."""
    plan: list[tuple[str, Role, int, int]] = [
        ("clients", "devices", scale.clients, seed),
        ("server", "base", scale.server, seed),
        ("tested", "devices", scale.tested, seed + _OTHERS),
    ]
    total, done = sum(count for _, _, count, _ in plan), count_from(1)

    def make(name: str, voices: Role, count: int, cast: int) -> list[Example]:
        examples = []
        for number, person in enumerate(draw_people(voices, count, cast, with_profiles=False)):
            generator = np.random.default_rng([seed, number, *name.encode()])
            many = int(generator.integers(max(1, scale.each // 2), scale.each + scale.each // 2 + 1))
            for place in range(many):
                text = digit_string(generator, "en", scale.digits)
                examples.append(sentence(text, person, (cast, number, place), scale.bins))
            tell(next(done), total)
        return examples

    paths = {name: folder / f"{name}-{seed}-{digest(scale)}.safetensors" for name, *_ in plan}
    said = (keep_speech(paths[group[0]], partial(make, *group)) for group in plan)
    return Speech(*(tuple(tuple(own) for _, own in groupby(each, attrgetter("source"))) for each in said))


def shuffle(voices: Voices, seed: int) -> Voices:
    """The same sentences, each with a client drawn at random: the IID counterpart."""
    every = [example for voice in voices for example in voice]
    mixed: list[list[Example]] = [[] for _ in voices]
    for example, owner in zip(every, reassign([0] * len(every), len(voices), seed), strict=True):
        mixed[owner].append(example)
    return tuple(map(tuple, mixed))
