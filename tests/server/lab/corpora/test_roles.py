from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk.errors import DataError
from server.lab.corpora.roles import VOICES, role_of, split_voices
from server.lab.corpora.utterance import Corpus, Utterance
from server.lab.training.runs import digits, real_recordings


@pytest.mark.parametrize(
    ("kind", "speaker", "role"),
    [("barista", "v36", "base"), ("barista", "v43", "development"), ("barista", "v02", "devices"),
     ("barista", "v05", "heldout"), ("fsdd", "theo", "base"), ("fsdd", "lucas", "heldout")],
)  # fmt: skip
def test_known_voices_have_a_fixed_role(kind: str, speaker: str, role: str) -> None:
    assert role_of(kind, speaker) == role


def test_no_voice_has_two_roles() -> None:
    for roles in VOICES.values():
        named = [speaker for speakers in roles.values() for speaker in speakers]
        assert len(named) == len(set(named))


def test_unknown_voices_are_split_by_a_stable_hash() -> None:
    split = split_voices("folder", (f"speaker {number}" for number in range(400)))
    assert sum(map(len, split.values())) == 400
    assert 120 < len(split["base"]) < 200
    assert 120 < len(split["devices"]) < 200
    assert 50 < len(split["heldout"]) < 110
    assert role_of("folder", "speaker 0") == role_of("folder", "speaker 0")


def written_digits(folder: Path) -> Path:
    (folder / "recordings").mkdir()
    for name in ("7_jackson_0", "3_theo_1", "9_george_0"):
        soundfile.write(folder / "recordings" / f"{name}.wav", np.full(800, 0.1), 8_000)
    (folder / "recordings" / "notes.txt").write_text("not a digit")
    return folder


def test_digits_come_one_by_one_from_base_voices(tmp_path: Path) -> None:
    path = written_digits(tmp_path)
    assert [(r.text, r.speaker) for r in digits(path)] == [("three", "theo"), ("seven", "jackson"), ("nine", "george")]
    found = real_recordings("fsdd", path, Corpus("fsdd", ()))
    assert {recording.speaker for recording in found} == {"jackson", "theo"}
    assert found[0].waveform.size == 1600


def test_a_folder_without_digits_is_named(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    with pytest.raises(DataError, match="no file is named like"):
        digits(tmp_path)


def test_only_sure_words_of_base_voices_are_trained_on() -> None:
    def utterance(name: str, speaker: str, score: bool) -> Utterance:
        return Utterance(name, speaker, "a latte", {}, score, lambda: np.zeros(160, np.float32))

    corpus = Corpus("barista", (utterance("a", "v36", True), utterance("b", "v36", False), utterance("c", "v02", True)))
    assert [r.speaker for r in real_recordings("barista", Path(), corpus)] == ["v36"]
