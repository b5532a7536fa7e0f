"""Who speaks at meetings."""

from __future__ import annotations

import pytest

from examples.liu_2020.meetings import MEETINGS, Meeting, Turn, cast
from server.lab.corpora.voices import VARIANTS

TURNS = tuple(Turn(speaker, "good morning") for speaker in ("Marketing", "Project Manager", "User Interface"))


def test_no_voice_of_devices_is_heard_in_training() -> None:
    of_stage = {stage: set(held) for stage, held in MEETINGS.variants.items()}
    assert not of_stage["learn"] & of_stage["test"] and not of_stage["learn"] & of_stage["development"]
    assert not of_stage["development"] & of_stage["test"]
    assert of_stage["learn"] <= set(VARIANTS["base"])


def test_people_of_a_series_sound_the_same_at_all_its_meetings() -> None:
    first, second, other = (cast(Meeting(name, TURNS), "test") for name in ("ES2002a", "ES2002b", "ES2003a"))
    assert first == second and first != other
    assert len({person.voice.variant for person in first.values()}) == 3
    assert {person.voice.variant for person in first.values()} <= set(MEETINGS.variants["test"])


def test_an_utterance_sounds_the_same_each_time() -> None:
    pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
    from examples.liu_2020.meetings import waveform

    meeting = Meeting("ES2002a", TURNS)
    persons = cast(meeting, "test")
    once, again, later = (waveform(meeting, number, TURNS[0], persons) for number in (0, 0, 1))
    assert (once == again).all() and once.size > 8000
    assert once.shape != later.shape or (once != later).any(), "noise differs from one utterance to the next"
