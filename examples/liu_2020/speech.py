"""Meetings aloud: the people of a series have each a voice, a room and a microphone of their own.

The base model hears the variants of its own stage alone (:data:`MEETINGS`), so devices meet voices it never heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from examples.liu_2020.transcripts import Meeting, Turn, series_of
from examples.rao_2023.domains import QUIET, Domain, Stage, people
from server.lab.corpora.made import Person, say
from server.lab.corpora.utterance import Waveform
from server.lab.corpora.voices import Voice
from server.lab.training.speech import Mixture

__all__ = ["MEETINGS", "base_mixture", "cast", "waveform"]

MEETINGS = Domain(
    name="meetings",
    sentences={"learn": (), "development": (), "test": ()},
    variants={
        "learn": (
            *("f1", "f2", "f4", "m1", "m2", "m4", "m6", "m7", "Alex", "adam", "david", "edward", "paul", "steph"),
            *("Alicia", "Andy", "Hugo", "Michael", "Reed", "caleb", "max", "steph2"),
        ),
        "development": ("Andrea", "Nguyen", "ed", "grandpa", "m3", "pablo"),
        "test": ("Annie", "Mike", "belinda", "f5", "linda", "m5", "mike2", "pedro"),
    },
    accents=("en-us",),
    scenes=replace(QUIET, snr_db=(20.0, 40.0)),
)
"""Whose voices, in which rooms."""


def cast(meeting: Meeting, stage: Stage) -> dict[str, Person]:
    """speaker -> who that is: the same for all meetings of a series."""
    speakers = sorted({turn.speaker for turn in meeting.turns})
    generator = np.random.default_rng([*series_of(meeting.name).encode()])
    roles = dict(zip(speakers, people(MEETINGS, stage, len(speakers), generator), strict=True))
    return {speaker: replace(person, name=f"{series_of(meeting.name)} {speaker}") for speaker, person in roles.items()}


def waveform(meeting: Meeting, number: int, turn: Turn, persons: dict[str, Person]) -> Waveform:
    """Utterance ``number`` of a meeting as its speaker's microphone hears it, float32 [S] at 16 kHz."""
    return say(turn.text, persons[turn.speaker], [number, *meeting.name.encode()])


def base_mixture(sentences: Sequence[str]) -> Mixture:
    """What a base model for meetings learns from: the sentences, said by 600 voices of the stage ``learn``."""
    voices: tuple[Voice, ...] = tuple(p.voice for p in people(MEETINGS, "learn", 600, np.random.default_rng(0)))
    return Mixture(
        sentences=tuple(sentences),
        intents={},
        sentences_share=1.0,
        recorded=0.0,
        narrow=0.0,
        scenes=replace(MEETINGS.scenes, speed=(0.95, 1.05)),
        voices=voices,
    )
