from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.decoding.endpoint import NOTHING, heard, levels

STEP = 0.03


def after(*stretches):
    """The loudness after stretches of (nats, seconds)."""
    found = NOTHING
    for level, seconds in stretches:
        found, _ = heard(found, [level] * round(seconds / STEP), STEP)
    return found


@pytest.mark.parametrize(
    ("stretches", "quiet"),
    [
        ([(-10.0, 3.0)], 0.0),  # nobody has spoken yet
        ([(-10.0, 0.6), (0.0, 0.9)], 0.0),
        ([(-10.0, 0.6), (0.0, 0.9), (-10.0, 0.6)], 0.6),
        ([(0.0, 0.9), (-10.0, 0.6)], 0.6),  # the room is heard after the speaker
        ([(-10.0, 0.6), (0.0, 0.9), (-10.0, 0.6), (0.0, 0.3)], 0.0),
        ([(-10.0, 0.6), (0.0, 0.9), (-3.0, 0.6)], 0.0),  # a soft word
        ([(-60.0, 0.6), (0.0, 0.9), (-10.0, 0.6)], 0.6),  # a room is none the louder for digital silence before it
        ([(0.0, 0.6), (2.0, 0.9), (0.0, 0.6)], 0.0),  # noise as loud as the speaker: nobody can tell
        ([(-10.0, 0.6), (0.0, 0.9), (-10.0, 30.0), (-8.5, 0.3)], 0.0),  # after long, a soft word is enough
    ],
)
def test_quiet_is_relative_to_speaker_and_room(stretches, quiet):
    assert after(*stretches).quiet == pytest.approx(quiet)


@given(st.lists(st.floats(-16.0, 10.0), min_size=1, max_size=200), st.floats(-5.0, 5.0))
def test_a_louder_recording_is_quiet_at_the_same_times(found, gain):
    first, _ = heard(NOTHING, found, STEP)
    second, _ = heard(NOTHING, [level + gain for level in found], STEP)
    assert second.room == pytest.approx(first.room + gain) and second.speaker == pytest.approx(first.speaker + gain)


@given(st.lists(st.floats(-16.0, 10.0), max_size=100), st.integers(0, 100))
def test_steps_are_heard_alike_in_any_portions(found, at):
    whole, quiets = heard(NOTHING, found, STEP)
    before, first = heard(NOTHING, found[:at], STEP)
    after, second = heard(before, found[at:], STEP)
    assert after == whole and first + second == quiets


def test_levels_are_energies_of_the_lower_half(rng=np.random.default_rng(3)):
    frames = rng.normal(size=(12, 8)).astype(np.float32)
    expected = [np.log(np.sum(np.exp(frames[at : at + 3, :4]))) for at in range(0, 12, 3)]
    assert levels(frames, 3) == pytest.approx(expected, rel=1e-5)
    assert levels(frames[:0], 3) == []
