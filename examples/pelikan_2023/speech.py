"""Who dictates what: strings of digits by made voices, as clients, as a server's own speech, and as tests.

The server's voices and those of clients come from disjoint sets of speakers, and the server's have no regional accent,
so that a seed model meets another domain (Pelikan et al. 2023, section 5.3). Tests are of the clients' domain, by other
people in other rooms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from examples.cohorts import sentence
from server.lab.corpora.made import draw_people
from server.lab.corpora.readers import DIGITS
from server.lab.corpora.voices import VoiceSet
from server.lab.simulation.engine.population import reassigned
from server.lab.training.data import Example, read_shard, write_shard

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


def dictated(scale: SpokenScale, seed: int, folder: Path, tell: Callable[[int, int], None] = lambda *_: None) -> Speech:
    """What everyone says. Made once and kept in ``folder``; a function of scale and seed."""
    digest = sha256(json.dumps([asdict(scale), seed]).encode()).hexdigest()[:12]
    plan: list[tuple[str, VoiceSet, int, int]] = [
        ("clients", "devices", scale.clients, seed),
        ("server", "base", scale.server, seed),
        ("tested", "devices", scale.tested, seed + _OTHERS),
    ]
    total, done, speech = sum(count for _, _, count, _ in plan), 0, {}
    for name, voices, count, cast in plan:
        path = folder / f"{name}-{digest}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            examples = []
            for number, person in enumerate(draw_people(voices, count, cast, with_profiles=False)):
                generator = np.random.default_rng([seed, number, *name.encode()])
                many = int(generator.integers(max(1, scale.each // 2), scale.each + scale.each // 2 + 1))
                for place in range(many):
                    size = int(generator.integers(1, scale.digits + 1))
                    text = " ".join(DIGITS[digit] for digit in generator.integers(10, size=size))
                    examples.append(sentence(text, person, (cast, number, place), scale.bins))
                done += 1
                tell(done, total)
            write_shard(path, examples)
        speech[name] = _by_voice(read_shard(path))
    return Speech(**speech)


def shuffled(voices: Voices, seed: int) -> Voices:
    """The same sentences, each with a client drawn at random: the IID counterpart."""
    every = [example for voice in voices for example in voice]
    owners = reassigned([0] * len(every), len(voices), seed)
    return tuple(
        tuple(example for example, owner in zip(every, owners, strict=True) if owner == client)
        for client in range(len(voices))
    )


def _by_voice(examples: Sequence[Example]) -> Voices:
    voices: dict[str, list[Example]] = {}
    for example in examples:
        voices.setdefault(example.source, []).append(example)
    return tuple(tuple(voice) for voice in voices.values())
