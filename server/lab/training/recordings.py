"""Real recordings for base training, and which voices may be used for it.

Voices are split in disjoint sets before anything is trained: *base* trains base models, *development* chooses between
them, *devices* are for simulations, *heldout* for checking. Known corpora have a fixed split; voices that it does not
name, and other corpora, are split by a stable hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from server.lab.corpora.readers import DIGITS, digit_files, load_audio
from server.lab.corpora.utterance import Corpus, Utterance
from server.lab.training.speech import Recording, record

__all__ = ["VOICES", "Role", "digits", "real_recordings", "role_of", "split_voices", "sure"]

Role = Literal["base", "development", "devices", "heldout"]

VOICES: Mapping[str, Mapping[Role, tuple[str, ...]]] = {
    "barista": {
        "base": ("v10", "v14", "v19", "v26", "v29", "v30", "v33", "v34", "v36", "v37"),
        "development": ("v43",),
        "devices": ("v02", "v03", "v04", "v07", "v18", "v21", "v24", "v25", "v28", "v31", "v38", "v42"),
        "heldout": ("v05", "v06", "v08", "v35", "v40", "v46"),
    },
    "fsdd": {
        "base": ("jackson", "theo"),
        "development": (),
        "devices": ("george",),
        "heldout": ("lucas",),
    },
}


def role_of(kind: str, speaker: str) -> Role:
    """What a voice of a corpus is for; unnamed voices go by hash, 4 in 10 to base, 4 to devices, 2 held out."""
    for role, speakers in VOICES.get(kind, {}).items():
        if speaker in speakers:
            return role
    position = hashlib.blake2b(f"{kind}/{speaker}".encode(), digest_size=2, person=b"idiolect voice").digest()[0] / 256
    return "base" if position < 0.4 else "devices" if position < 0.8 else "heldout"


def split_voices(kind: str, speakers: Iterable[str]) -> dict[Role, list[str]]:
    """Speakers by role, sorted."""
    result: dict[Role, list[str]] = {"base": [], "development": [], "devices": [], "heldout": []}
    for speaker in sorted(set(speakers)):
        result[role_of(kind, speaker)].append(speaker)
    return result


def real_recordings(kind: str, path: Path, corpus: Corpus) -> list[Recording]:
    """What may be trained on: base voices with sure words. Digits come one by one, to be joined afresh."""
    if kind == "fsdd":
        return [recording for recording in digits(path) if role_of(kind, recording.speaker) == "base"]
    return record((u for u in corpus.utterances if role_of(kind, u.speaker) == "base"), kind)


def digits(path: Path) -> list[Recording]:
    """Single digits of ``PATH/recordings``. Raises DataError where there are none."""
    rows = sorted(digit_files(path), key=lambda row: row[3])
    return [Recording(load_audio(file), DIGITS[digit], speaker, "fsdd") for speaker, digit, _, file in rows]


def sure(utterances: Iterable[Utterance], kind: str, role: Role) -> list[Utterance]:
    """Utterances of one role whose words can be scored."""
    return [u for u in utterances if u.text and u.score_words and role_of(kind, u.speaker) == role]
