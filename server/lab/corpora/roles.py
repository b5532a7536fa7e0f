"""Which voices of a corpus are for what.

Voices are split in disjoint sets before anything is trained: *base* trains base models, *development* chooses between
them and tunes them, *devices* are for simulations, *heldout* for checking. ``split.toml`` holds the split of known
corpora; voices that it does not name, and other corpora, are split by a stable hash. Everything that opens speech says
of which roles."""

import hashlib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from importlib.resources import files
from itertools import accumulate
from typing import Any, Literal, cast, get_args

from device_sdk.bundle import Bundle

Role = Literal["base", "development", "devices", "heldout"]
ROLES: tuple[Role, ...] = get_args(Role)
UNHEARD: tuple[Role, ...] = ("devices", "heldout")
"""Neither trained on nor chosen by."""

Listed = Mapping[str, Mapping[str, Collection[str]]]
"""Kind of corpus -> role -> voices, as a bundle's card has them."""

RoleOf = Callable[[str, str], Role]
"""(kind of corpus, voice) -> what the voice is for."""

SPLIT: Mapping[str, Mapping[str, Any]] = tomllib.loads(files(__package__).joinpath("split.toml").read_text("utf-8"))
"""Kind of corpus -> its ``licence`` with attribution, the voices of each role, and ``shares``: percentages of roles."""

_TRAINING = {"base": 60, "development": 10, "devices": 20, "heldout": 10}
_SCORING = {"devices": 70, "heldout": 30}
_REHEARSAL = {"base": 100}


def role_of(kind: str, voice: str, listed: Listed | None = None, unknown: Mapping[str, int] = _TRAINING) -> Role:
    """What a voice is for: as a card lists it, else as the split does, else by a hash into shares, which are those of
    ``unknown`` where the split has none. A made voice (``base-03``) says it itself."""
    if kind == "made":
        return cast(Role, voice.partition("-")[0])
    split = SPLIT.get(kind, {})
    for voices in ((listed or {}).get(kind, {}), split):
        for role in ROLES:
            if voice in voices.get(role, ()):
                return role
    digest = hashlib.blake2b(f"{kind}/{voice}".encode(), digest_size=2, person=b"idiolect voice").digest()
    position, shares = 100 * int.from_bytes(digest) / 2**16, split.get("shares", unknown)
    return cast(
        Role, next(role for role, end in zip(shares, accumulate(shares.values()), strict=True) if position < end)
    )


def voice_of(kind: str, speaker: str, text: str | None) -> str:
    """Whose voice a recording is: its speaker's, but for Common Voice, which names none, one of a hundred parts of all
    sentences by a hash of the words."""
    if kind != "common_voice":
        return speaker
    words = " ".join(re.findall(r"[a-z']+", (text or "").lower()))
    digest = hashlib.blake2b(words.encode(), digest_size=1, person=b"idiolect voice").digest()
    return f"part-{100 * digest[0] // 256:02d}"


def card_voices(bundle: Bundle) -> Listed:
    """The voices of a bundle's card; none where it names none."""
    return bundle.manifest.training.get("voices") or {}


def scoring(listed: Listed | None) -> RoleOf:
    """For whoever scores a bundle: a voice that neither its card nor the split knows is unheard."""
    return partial(role_of, listed=listed, unknown=_SCORING)


def rehearsal(listed: Listed | None) -> RoleOf:
    """For whoever trains a bundle further on speech given for that: a voice that is not known may be trained on."""
    return partial(role_of, listed=listed, unknown=_REHEARSAL)


def split_voices(kind: str, speakers: Iterable[str]) -> dict[Role, list[str]]:
    """Speakers by role, sorted."""
    named = sorted(set(speakers))
    return {role: [speaker for speaker in named if role_of(kind, speaker) == role] for role in ROLES}
