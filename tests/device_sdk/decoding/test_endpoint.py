from itertools import pairwise, product

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.decoding import Endpointing, EndpointRule, Recognizer
from device_sdk.decoding.endpoint import NOTHING, endpoint, heard, levels, trailing_silence
from device_sdk.errors import ConfigurationError
from device_sdk.hypothesis import Result
from device_sdk.personalization.rescorer import Rescorer
from server.lab.corpora.made import made_corpus
from tests.speech import packaged

NONE = Endpointing(None, None, None)


@pytest.mark.parametrize(
    ("since_token", "quiet", "expected"),
    [
        (0.9, 0.9, 0.9),
        (0.9, 1.5, 0.9),  # a word that was said softly
        (1.4, 0.1, 0.7),  # a sound without a token counts half: a long word, or one that is not recognized
        (1.4, 0.8, 0.8),
        (5.0, 0.0, 2.5),  # noise that nobody can tell from a speaker
        (0.0, 3.0, 0.0),
    ],
)
def test_silence_is_told_by_level_and_tokens_together(since_token, quiet, expected):
    assert trailing_silence(since_token, quiet) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rules", "has_text", "silence", "seconds", "expected"),
    [
        (Endpointing(), False, 0.0, 0.0, None),
        (Endpointing(), False, 2.37, 2.37, None),
        (Endpointing(), False, 2.4, 2.4, "silence"),  # nothing was said
        (Endpointing(), True, 0.77, 3.0, None),
        (Endpointing(), True, 0.8, 3.0, "after_speech"),
        (Endpointing(), True, 0.47, 30.0, None),  # still speaking: a word is not cut
        (Endpointing(), True, 0.48, 5.9, None),
        (Endpointing(), True, 0.48, 6.0, "length"),
        (Endpointing(), True, 2.0, 20.1, "after_speech"),  # rules are tried in their order
        (NONE, True, 300.0, 300.0, None),
        (NONE, False, 300.0, 300.0, None),
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), False, 3.0, 3.0, None),  # all conditions must hold
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), False, 5.0, 5.0, "silence"),
        (Endpointing(None, EndpointRule(min_trailing_silence=0.3)), True, 0.3, 0.6, "silence"),  # after text too
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), False, 0.3, 0.3, None),
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), True, 0.0, 0.3, "length"),
    ],
)
def test_the_rules(rules, has_text, silence, seconds, expected):
    assert (endpoint(has_text, silence, seconds, rules) or [None])[0] == expected


@given(has_text=st.booleans(), silence=st.floats(0.0, 60.0), before=st.floats(0.0, 60.0), more=st.floats(0.0, 15.0))
def test_silence_that_goes_on_ends_what_it_ended_before(has_text, silence, before, more):
    if endpoint(has_text, silence, before + silence, Endpointing()) is not None:
        assert endpoint(has_text, silence + more, before + silence + more, Endpointing()) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EndpointRule(), "found a rule without a silence or a length"),
        (lambda: EndpointRule(True), "set it to None"),
        (lambda: EndpointRule(1, 1.0), r"endpointing\.must_contain_text: found int, expected True or False"),
        (lambda: EndpointRule(True, -1.0), r"endpointing\.min_trailing_silence: found -1\.0"),
        (lambda: EndpointRule(True, float("nan")), r"min_trailing_silence: found nan"),
        (lambda: EndpointRule(True, "1"), r"min_trailing_silence: found str"),
        (lambda: EndpointRule(False, 0.0, float("inf")), r"endpointing\.min_utterance_length: found inf"),
        (lambda: Endpointing(after_speech=1.2), r"endpointing\.after_speech: found float, expected an EndpointRule"),
    ],
)
def test_settings_outside_their_domain_are_named(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


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


def test_levels_are_energies_of_the_lower_half():
    frames = np.random.default_rng(3).normal(size=(12, 8)).astype(np.float32)
    expected = [np.log(np.sum(np.exp(frames[at : at + 3, :4]))) for at in range(0, 12, 3)]
    assert levels(frames, 3) == pytest.approx(expected, rel=1e-5) and levels(frames[:0], 3) == []


ROOM = 1e-3


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(packaged(), rescore=Rescorer(packaged()).rescore)


@pytest.fixture(scope="module")
def commands(recognizer):
    """Commands that are heard right alone and after a pause, by text: the waveform cut to its speech by how loud it
    is."""
    found = {}
    for each in made_corpus("base", 10, 8, seed=17).utterances:
        waveform = each.audio()
        loud = np.flatnonzero(np.abs(waveform) > 0.05 * np.abs(waveform).max())
        cut = waveform[loud[0] : loud[-1]]
        if {recognizer.recognize(sound, 16_000).text for sound in (cut, joined([cut], 0.7))} == {each.text}:
            found[each.text] = cut
        if len(found) == 7:
            break
    assert len(found) >= 5
    return found


def joined(spoken, pause):
    rng, length = np.random.default_rng(5), round(pause * 16_000)
    parts = [part for clip in spoken for part in (ROOM * rng.standard_normal(length), clip)]
    return np.concatenate(parts).astype(np.float32)


def streamed(recognizer, sound):
    return [event for event in recognizer.session(16_000).segments([sound]) if isinstance(event, Result)]


def errors(alone, results):
    found = jiwer.process_words(" ".join(alone), " ".join(result.text for result in results))
    return found.substitutions + found.deletions + found.insertions


@pytest.mark.parametrize("pause", [0.5, 0.8, 1.2, 2.0, 4.0])
def test_neither_a_stream_nor_one_utterance_loses_words_in_pauses(recognizer, commands, pause):
    sound, alone = joined(commands.values(), pause), [*commands]
    found, pauses = streamed(recognizer, sound), len(alone) - 1
    assert errors(alone, found) < pauses
    words = [result.offset + word.start for result in found for word in result.nbest[0].words]
    assert words == sorted(words)
    result = recognizer.recognize(sound, 16_000)
    assert errors(alone, [result]) < pauses and len({hypothesis.text for hypothesis in result.nbest}) == len(
        result.nbest
    )


def test_networks_hear_nothing_of_a_long_pause(recognizer, commands):
    """A minute of silence in an utterance costs the encoder what half a second costs."""
    heard, spoken = [], [*commands.values()]
    transducer = recognizer.transducer

    class Counting:
        def __getattr__(self, name):
            return getattr(transducer, name)

        def encode(self, features, state=None):
            heard.append(len(features))
            return transducer.encode(features, state)

    counting, found = Recognizer(recognizer.bundle, transducer=Counting()), []
    for pause in (1.0, 60.0):
        heard.clear()
        rest = ROOM * np.random.default_rng(1).standard_normal(round(pause * 16_000))
        counting.recognize(np.concatenate([spoken[0], rest, spoken[1]]).astype(np.float32), 16_000)
        found.append(sum(heard))
    assert found[1] <= found[0] + 30


def test_a_word_begins_before_it_is_loud(recognizer, commands):
    """The next utterance has the last moment of the silence before it, whenever the endpoint is found."""
    wrong = []
    for two, pause in product(pairwise(commands), np.arange(0.8, 1.15, 0.05)):
        spoken = joined([commands[each] for each in two], float(pause))
        sound = np.concatenate([spoken, np.zeros(16_000, np.float32)])
        wrong.append(errors(two, streamed(recognizer, sound)))
    assert np.median(wrong) == 0 and max(wrong) <= 2
