"""Who dictates what: strings of digits by made voices, as clients, as a server's own speech, and as tests.

The server's voices and those of clients come from disjoint sets of speakers, and the server's have no regional accent,
so that a seed model meets another domain (Pelikan et al. 2023, section 5.3). Tests are of the clients' domain, by other
people in other rooms. F: feature frames (10 ms); M: mel bins; U: characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from device_sdk.features.logmel import logmel
from export.networks.alphabet import Alphabet
from server.lab.corpora.fsdd import DIGITS
from server.lab.corpora.made import draw_people, say
from server.lab.corpora.voices import VoiceSet
from server.lab.simulation.engine.population import Drawing, Tensors, reassigned
from server.lab.training.augmentation import Augmentation, mask
from server.lab.training.data import Example, moments, read_shard, write_shard

__all__ = ["Speech", "Spoken", "SpokenScale", "dictated", "shuffled"]

Voices = tuple[tuple[Example, ...], ...]
_OTHERS = 1 << 20  # added to the seed that decides who the people of a test are


@dataclass(frozen=True, slots=True)
class SpokenScale:
    """How much is said. clients, server, tested: voices; each: sentences of a voice, from half as many to half as many
    more; digits: of a sentence, at most; bins: of the features, means of as many of the 64 mel bins each."""

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
    total, done, found = sum(count for _, _, count, _ in plan), 0, {}
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
                    features = logmel(say(text, person, (cast, number, place)))
                    pooled = features.reshape(len(features), scale.bins, -1).mean(2).astype(np.float16)
                    examples.append(Example(pooled, text, person.name))
                done += 1
                tell(done, total)
            write_shard(path, examples)
        found[name] = _by_voice(read_shard(path))
    return Speech(**found)


def shuffled(voices: Voices, seed: int) -> Voices:
    """The same sentences, each with a client drawn at random: the IID counterpart."""
    every = [example for voice in voices for example in voice]
    owners = reassigned([0] * len(every), len(voices), seed)
    return tuple(
        tuple(example for example, owner in zip(every, owners, strict=True) if owner == client)
        for client in range(len(voices))
    )


class Spoken:
    """A population of voices. Owns nothing but what it is given. masks: SpecAugment, drawn afresh at every use."""

    def __init__(
        self, voices: Sequence[Sequence[Example]], alphabet: Alphabet, masks: Augmentation | None = None
    ) -> None:
        self.voices, self.masks = voices, masks
        self.tokens = [[torch.tensor(alphabet.encode(example.text)) for example in voice] for voice in voices]
        self.mean = moments(example for voice in voices for example in voice)[0] if masks else None

    def __len__(self) -> int:
        return len(self.voices)

    def examples(self, client: int) -> int:
        return len(self.voices[client])

    def batch(self, client: int, chosen: Sequence[int], drawing: Drawing) -> Tensors:
        """(features [R, F, M] float32, frames [R], tokens [R, U], lengths [R]), padded with zeros."""
        features = [self.voices[client][place].features.astype(np.float32) for place in chosen]
        if self.masks is not None and self.mean is not None:
            generator = drawing()
            features = [mask(values, self.mean, self.masks, generator) for values in features]
        tokens = [self.tokens[client][place] for place in chosen]
        return (
            pad_sequence([torch.from_numpy(values) for values in features], batch_first=True),
            torch.tensor([len(values) for values in features]),
            pad_sequence(tokens, batch_first=True),
            torch.tensor([len(values) for values in tokens]),
        )


def _by_voice(examples: Sequence[Example]) -> Voices:
    voices: dict[str, list[Example]] = {}
    for example in examples:
        voices.setdefault(example.source, []).append(example)
    return tuple(tuple(voice) for voice in voices.values())
