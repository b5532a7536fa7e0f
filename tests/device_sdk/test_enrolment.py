"""A reading aloud: what is read, what it gains, when it ends, and that what does not help is taken back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk import Bundle, ConfigurationError, Device, DeviceSettings, LearningError
from device_sdk.enrolment import LEAST, PHRASES, chosen
from tests.device_sdk.devices import KEY
from tests.signals import hiss
from tests.speech import packaged


def test_phrases_hold_all_sounds_and_the_users_names() -> None:
    assert len(set(PHRASES)) == len(PHRASES) >= 40
    assert {*"abcdefghijklmnopqrstuvwxyz "} == {*"".join(PHRASES)}
    few, names = chosen(PHRASES, [], 12), ["niamh", "george", "siobhan"]
    triples = [len({each[at : at + 3] for each in some for at in range(len(each) - 2)}) for some in (few, PHRASES[:12])]
    assert triples[0] > triples[1]
    named = chosen(PHRASES, names, 12)
    assert len(named) == len(set(named)) == 12 and all(any(name in each for each in named) for name in names)


def test_it_gains_on_what_was_kept_aside(tmp_path: Path) -> None:
    from server.lab.corpora.made import draw_people, say

    bundle, person = packaged(), draw_people("devices", 3, 6)[1]  # who is heard badly
    with Device.open(tmp_path, KEY, bundle) as device:
        reading, steps = device.enrolment(), []
        while reading.phrase is not None:
            steps.append(reading.read(say(reading.phrase, person, (5, len(steps))), 16_000))
        report = reading.finish()
        assert [step.aside for step in steps] == [at % 3 == 2 for at in range(len(steps))]
        assert report.phrases == len(steps) and report.aside == len(steps) // 3
        assert report.kept and report.after < report.before
        assert report.low <= report.after - report.before <= report.high
        assert device.student.steps > 0 and "kept" in str(report)
        with pytest.raises(ConfigurationError, match="the reading is over"):
            reading.read(np.zeros(16_000, np.float32), 16_000)


def test_what_does_not_help_is_taken_back_and_the_reading_ends_by_itself(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        device.agree("counting", "learning", "marginals")
        device.recognize(hiss(99), 16_000)
        before, summary = device.student.weights, device.learned()
        phrases = [f"turn on {light} {number * 'o'}n" for number in range(1, 14) for light in ("light", "lights")]
        reading, read = device.enrolment(phrases), 0
        while reading.phrase is not None:
            audio = hiss(read)
            reading.read(audio if read % 3 != 2 else 0 * audio, 16_000)  # of silence nothing is gained
            read += 1
        report = reading.finish()
        assert not report.kept and read < len(phrases) and report.stopped == "nothing more was gained"
        assert all((device.student.weights[name] == value).all() for name, value in before.items())
        assert device.learned() == summary and not device.vocabulary.list(), "not a word of the phrases is the user's"
        assert not any(each.feedback for each in device.remembered())


def test_who_refuses_learning_is_not_read_to(tmp_path: Path, tiny_bundle: Bundle) -> None:
    off = DeviceSettings(learn=False)
    with Device.open(tmp_path / "off", KEY, tiny_bundle, off) as device, pytest.raises(LearningError, match="needs"):
        device.enrolment()
    with Device.open(tmp_path / "on", KEY, tiny_bundle) as device:
        for few in (["one", "two"], []):
            with pytest.raises(ConfigurationError, match=f"found {len(few)} phrases, expected at least {LEAST}"):
                device.enrolment(few)
        with pytest.raises(ConfigurationError, match=r"enrolment: phrase: found 'ø', expected the letters"):
            device.enrolment([f"turn {each * 'o'}n" for each in range(9)] + ["møller"])
        assert set(device.enrolment().phrase or "") - {" "} <= tiny_bundle.tokenizer.letters
        device.withdraw("learning")
        with pytest.raises(LearningError, match="agree"):
            device.enrolment()


def test_the_command_reads_recordings(tmp_path: Path, tiny_bundle: Bundle) -> None:
    (tmp_path / "read").mkdir()
    for number in range(7):
        soundfile.write(tmp_path / "read" / f"{number}.wav", hiss(number), 16_000)
        (tmp_path / "read" / f"{number}.txt").write_text(f"turn light {number * 'o'}n\n")
    command = [sys.executable, "-m", "device_sdk.cli", "enrol", "--state", str(tmp_path / "state"), "--json"]
    command += ["--recordings", str(tmp_path / "read"), "--bundle", str(tiny_bundle.path)]
    own = {**os.environ, "IDIOLECT_STATE_KEY": "11" * 32}
    done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["report"]["phrases"] == len(found["steps"]) == 7 and found["report"]["aside"] == 2
    (tmp_path / "read" / "3.txt").unlink()
    command[command.index(str(tmp_path / "state"))] = str(tmp_path / "other")
    done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=120)
    assert done.returncode == 1 and "3.wav has no 3.txt" in done.stderr
    assert not (tmp_path / "other").exists(), "nothing is made where nothing can be read"
