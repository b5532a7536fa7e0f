"""Which voices of a corpus are for what.

Voices are split in disjoint sets before anything is trained: *base* trains base models, *development* chooses between
them, *devices* are for simulations, *heldout* for checking. Known corpora have a fixed split; voices that it does not
name, and other corpora, are split by a stable hash."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Role = Literal["base", "development", "devices", "heldout"]
ROLES: tuple[Role, ...] = get_args(Role)

VOICES: Mapping[str, Mapping[Role, tuple[str, ...]]] = {
    "barista": {
        "base": ("v10", "v14", "v19", "v26", "v29", "v30", "v33", "v34", "v36", "v37"),
        "development": ("v43",),
        "devices": ("v02", "v03", "v04", "v07", "v18", "v21", "v24", "v25", "v28", "v31", "v38", "v42"),
        "heldout": ("v05", "v06", "v08", "v35", "v40", "v46"),
    },
    "fsdd": {"base": ("jackson", "theo"), "development": (), "devices": ("george",), "heldout": ("lucas",)},
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
    named = sorted(set(speakers))
    return {role: [speaker for speaker in named if role_of(kind, speaker) == role] for role in ROLES}
