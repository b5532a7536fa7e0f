"""Commands spoken by made voices in made rooms: speech without limit, with every label known."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from device_sdk.checks import check_interval
from server.lab.corpora.acoustics import GENTLE, Ranges, Scene, apply_scene, draw_scene
from server.lab.corpora.grammar import Command, Profile, lexicon, profile, sample
from server.lab.corpora.roles import Role
from server.lab.corpora.utterance import Corpus, Utterance, Waveform
from server.lab.corpora.voices import REGIONAL, Voice, draw_voices, speak


@dataclass(frozen=True, slots=True)
class Person:
    """A made speaker: a voice, one room and microphone, and what this person tends to say (None: anything)."""

    name: str
    voice: Voice
    scene: Scene
    profile: Profile | None


def draw_people(
    voice_set: Role,
    count: int,
    seed: int,
    ranges: Ranges = GENTLE,
    with_profiles: bool = True,
    regional: float = REGIONAL,
) -> tuple[Person, ...]:
    """People of a voice set, no two with the same variant while variants last. regional: see
    :func:`server.lab.corpora.voices.draw_voice`. The same for the same arguments."""
    check_interval("number of people", count, "[1, inf)")
    generator = np.random.default_rng([seed, *voice_set.encode()])
    voices = draw_voices(voice_set, count, generator, regional)
    return tuple(
        Person(
            name=f"{voice_set}-{n:02d}",
            voice=voice,
            scene=draw_scene(generator, ranges),
            profile=profile(generator) if with_profiles else None,
        )
        for n, voice in enumerate(voices)
    )


def say(text: str, person: Person, seed: Sequence[int]) -> Waveform:
    """A sentence as a person's microphone hears it, float32 [S] at 16 kHz. The same for the same arguments."""
    return apply_scene(speak(text, person.voice), person.scene, np.random.default_rng(list(seed)))


def made_utterance(command: Command, person: Person, seed: Sequence[int]) -> Utterance:
    """A command, said."""
    audio = partial(say, command.text, person, tuple(seed))
    name = "-".join([person.name, *map(str, seed)])
    return Utterance(name, person.name, command.text, command.slots, True, audio)


def made_corpus(voice_set: Role, people: int, each: int, seed: int) -> Corpus:
    """``each`` commands by each of some people, with sentences and voices of one split only, person after person."""
    utterances = []
    for number, person in enumerate(draw_people(voice_set, people, seed)):
        generator = np.random.default_rng([seed, number, *voice_set.encode()])
        for position in range(each):
            command = sample(generator, voice_set, person.profile)
            utterances.append(made_utterance(command, person, (seed, number, position)))
    return Corpus(f"made:{voice_set}", tuple(utterances), lexicon())
