"""What is said after a pause is heard as well as what is said alone."""

from __future__ import annotations

import json

import jiwer
import numpy as np
import pytest
import soundfile

from device_sdk.cli import main
from device_sdk.decoding import Recognizer
from device_sdk.hypothesis import Result
from server.lab.corpora.made import made_corpus
from tests.speech import packaged

ROOM = 1e-3


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(packaged())


@pytest.fixture(scope="module")
def commands(recognizer):
    """Commands that are heard right alone: by text, the waveform cut to its speech by how loud it is."""
    found = {}
    for each in made_corpus("base", 4, 3, seed=11).utterances:
        waveform = each.audio()
        loud = np.flatnonzero(np.abs(waveform) > 0.05 * np.abs(waveform).max())
        cut = waveform[loud[0] : loud[-1]]
        if recognizer.recognize(cut, 16_000).text == each.text:
            found[each.text] = cut
    assert len(found) >= 5
    return found


def joined(spoken, pause):
    rng = np.random.default_rng(5)
    parts = []
    for clip in spoken:
        parts += [ROOM * rng.standard_normal(round(pause * 16_000)), clip]
    return np.concatenate(parts).astype(np.float32)


def errors(alone, text):
    found = jiwer.process_words(" ".join(alone), text)
    return found.substitutions + found.deletions + found.insertions


@pytest.mark.parametrize("pause", [0.5, 0.8, 1.2, 2.0, 4.0])
def test_neither_a_stream_nor_one_utterance_loses_words_in_pauses(recognizer, commands, pause):
    sound, alone = joined(commands.values(), pause), [*commands]
    found = [event for event in recognizer.session(16_000).segments([sound]) if isinstance(event, Result)]
    assert errors(alone, " ".join(result.text for result in found)) <= 2
    words = [result.offset + word.start for result in found for word in result.nbest[0].words]
    assert words == sorted(words)
    result = recognizer.recognize(sound, 16_000)
    assert errors(alone, result.text) <= 3
    assert len({hypothesis.text for hypothesis in result.nbest}) == len(result.nbest)


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

    counting = Recognizer(recognizer.bundle, transducer=Counting())
    found = []
    for pause in (1.0, 60.0):
        heard.clear()
        rest = ROOM * np.random.default_rng(1).standard_normal(round(pause * 16_000))
        counting.recognize(np.concatenate([spoken[0], rest, spoken[1]]).astype(np.float32), 16_000)
        found.append(sum(heard))
    assert found[1] <= found[0] + 30


def test_a_word_begins_before_it_is_loud(recognizer, commands):
    """The next utterance has the last moment of the silence before it, whenever the endpoint is found."""
    for pause in np.arange(0.8, 1.15, 0.05):
        sound = np.concatenate([joined([*commands.values()][:2], float(pause)), np.zeros(16_000, np.float32)])
        found = [event for event in recognizer.session(16_000).segments([sound]) if isinstance(event, Result)]
        assert errors([*commands][:2], " ".join(result.text for result in found)) <= 1


def test_a_file_is_a_stream(commands, tmp_path, capsys):
    sound = joined(commands.values(), 1.5)
    soundfile.write(tmp_path / "all.wav", sound, 16_000)
    assert main(["transcribe", str(tmp_path / "all.wav"), "--json", "--no-rescore"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["files"]
    assert entry["seconds"] == pytest.approx(sound.size / 16_000, abs=1e-3)
    assert len(entry["utterances"]) >= len(commands) - 1
    assert entry["text"] == " ".join(each["text"] for each in entry["utterances"])
    assert errors(commands, entry["text"]) <= 2
    offsets = [each["offset"] for each in entry["utterances"]]
    assert offsets == sorted(offsets)
    assert main(["transcribe", str(tmp_path / "all.wav"), "--no-rescore"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(entry["utterances"])
