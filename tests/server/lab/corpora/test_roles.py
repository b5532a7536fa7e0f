from pathlib import Path

import numpy as np
import pytest
import soundfile

from server.lab.corpora.roles import VOICES, role_of, split_voices
from server.lab.corpora.utterance import Corpus, Utterance
from server.lab.training.runs import real_recordings


@pytest.mark.parametrize("kind", VOICES)
def test_known_voices_have_one_role(kind: str) -> None:
    named = [(speaker, role) for role, speakers in VOICES[kind].items() for speaker in speakers]
    assert len(dict(named)) == len(named) and all(role_of(kind, speaker) == role for speaker, role in named)


def test_unknown_voices_are_split_by_a_stable_hash() -> None:
    split = split_voices("folder", (f"speaker {number}" for number in range(400)))
    assert sum(map(len, split.values())) == 400
    assert 120 < len(split["base"]) < 200 and 120 < len(split["devices"]) < 200 and 50 < len(split["heldout"]) < 110


def test_digits_come_one_by_one_from_base_voices(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    for name in ("7_jackson_0", "3_theo_1", "9_george_0"):
        soundfile.write(tmp_path / "recordings" / f"{name}.wav", np.full(800, 0.1), 8_000)
    (tmp_path / "recordings" / "notes.txt").write_text("not a digit")
    assert [(r.text, r.speaker, r.waveform.size) for r in real_recordings("fsdd", tmp_path, Corpus("fsdd", ()))] == [
        ("three", "theo", 1600),
        ("seven", "jackson", 1600),
    ]


def test_only_sure_words_of_base_voices_are_trained_on() -> None:
    def utterance(name: str, speaker: str, score: bool) -> Utterance:
        return Utterance(name, speaker, "a latte", {}, score, lambda: np.zeros(160, np.float32))

    corpus = Corpus("barista", (utterance("a", "v36", True), utterance("b", "v36", False), utterance("c", "v02", True)))
    assert [r.speaker for r in real_recordings("barista", Path(), corpus)] == ["v36"]
