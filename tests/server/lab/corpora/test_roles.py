import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from server.lab.corpora import open_corpus
from server.lab.corpora.roles import ROLES, SPLIT, UNHEARD, Role, rehearsal, role_of, scoring, split_voices
from server.lab.training.runs import real_recordings


@pytest.mark.parametrize("kind", SPLIT)
def test_known_voices_have_one_role(kind: str) -> None:
    named = [(speaker, role) for role in ROLES for speaker in SPLIT[kind].get(role, ())]
    assert len(dict(named)) == len(named) and all(role_of(kind, speaker) == role for speaker, role in named)
    assert SPLIT[kind].keys() <= {*ROLES, "shares", "licence"} and SPLIT[kind]["licence"]
    assert sum(SPLIT[kind].get("shares", {"all": 100}).values()) == 100


@pytest.mark.parametrize(
    ("kind", "shares", "expected"),
    [
        (
            "folder",
            {"base": 60, "development": 10, "devices": 20, "heldout": 10},
            ["base", "heldout", "base", "base", "development"],
        ),
        (
            "common_voice",
            {"base": 70, "development": 10, "devices": 20, "heldout": 0},
            ["devices", "base", "devices", "base", "base"],
        ),
    ],
)
def test_unnamed_voices_are_split_by_a_stable_hash(kind: str, shares: dict[Role, int], expected: list[Role]) -> None:
    split = split_voices(kind, (f"speaker {number}" for number in range(1000)))
    assert sum(map(len, split.values())) == 1000
    assert {role: len(speakers) / 10 for role, speakers in split.items()} == pytest.approx(shares, abs=4)
    assert [role_of(kind, f"speaker {number}") for number in range(5)] == expected


def test_a_card_comes_before_the_split_and_whom_neither_knows_nothing_was_trained_on() -> None:
    card = {"barista": {"base": ["v02", "new"], "devices": ["v10"]}, "folder": {"base": ["ann"]}}
    role = scoring(card)
    assert [role("barista", voice) for voice in ("v02", "new", "v10", "v43")] == [
        *("base", "base", "devices", "development")
    ]
    assert role("folder", "ann") == "base"
    others = [f"speaker {number}" for number in range(100)]
    assert {role("folder", voice) for voice in others} == {role("librispeech", voice) for voice in others}
    assert {role("folder", voice) for voice in others} == set(UNHEARD)
    assert {rehearsal(card)("folder", voice) for voice in others} == {"base"}
    assert rehearsal(card)("barista", "v43") == "development"


def test_digits_come_one_by_one_from_base_voices(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    for name in ("7_jackson_0", "3_theo_1", "9_george_0"):
        soundfile.write(tmp_path / "recordings" / f"{name}.wav", np.full(800, 0.1), 8_000)
    (tmp_path / "recordings" / "notes.txt").write_text("not a digit")
    assert {(r.text, r.speaker, r.waveform.size) for r in real_recordings(f"fsdd:{tmp_path}")} == {
        ("three", "theo", 1600),
        ("seven", "jackson", 1600),
    }


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("librispeech", {"base": (14, 557), "development": (3, 133), "devices": (6, 513)}),
        ("common_voice", {"base": (70, 2498), "development": (8, 270), "devices": (22, 813)}),
        ("speech_commands", {"base": (280, 2962), "development": (42, 453), "devices": (83, 915)}),
        ("phone_numbers", {"base": (39, 39), "development": (6, 6), "devices": (8, 8)}),
    ],
)
def test_the_split_of_the_data_for_development(kind: str, counts: dict[Role, tuple[int, int]]) -> None:
    """(voices, utterances) of each role; the same words of Common Voice have one role."""
    corpora = {role: open_corpus(f"{kind}:{os.environ['IDIOLECT_DATA']}/{kind}", (role,)) for role in ROLES}
    assert {role: (len(each.speakers), len(each)) for role, each in corpora.items() if each.utterances} == counts
    roles = Counter(text for each in corpora.values() for text in {utterance.text for utterance in each.utterances})
    assert kind in {"speech_commands", "phone_numbers"} or set(roles.values()) == {1}
