"""Devices of a roster, made without a server."""

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from device_sdk.secure_aggregation.keys import advertised_bytes
from device_sdk.secure_aggregation.participant import Participant, advertise, mask, share
from device_sdk.wire.secure_aggregation import KeyAdvertisement, Roster

ROUND = "r1-0123456789"
DIGEST = "d" * 64


@dataclass(frozen=True)
class Party:
    """A device: its identity and what it keeps of the round."""

    identity: Ed25519PrivateKey
    participant: Participant

    @property
    def id(self) -> str:
        return self.participant.device_id


def advertised(count: int, *, words: int = 5, minimum: int = 2, round_id: str = ROUND) -> dict[str, Party]:
    """Devices that have announced their keys, by id."""
    parties = {}
    for index in range(count):
        key, name = Ed25519PrivateKey.generate(), f"device-{index:03d}"
        parties[name] = Party(key, advertise(key, name, round_id, subject=DIGEST, words=words, minimum=minimum))
    return parties


def roster_of(parties: dict[str, Party], *, word_bits: int = 32, **changes: object) -> Roster:
    members = tuple(parties[name].participant.advertised for name in sorted(parties))
    first = next(iter(parties.values())).participant
    fields = {"round_id": first.round_id, "words": first.words, "minimum": first.minimum, "members": members}
    return Roster.model_validate(fields | {"word_bits": word_bits} | changes)


def shared(parties: dict[str, Party], roster: Roster) -> dict[str, Participant]:
    return {name: share(party.participant, roster) for name, party in parties.items()}


def deliveries(participants: dict[str, Participant], to: str) -> dict[str, bytes]:
    found = {}
    for name, each in participants.items():
        if name != to and each.dealt is not None and each.roster is not None:
            receivers = each.roster.sealed_for(name)
            found[name] = each.dealt.sealed[receivers.index(to)] if to in receivers else b""
    return found


def masked(participants: dict[str, Participant], vectors: dict[str, NDArray[np.int64]]) -> dict[str, Participant]:
    return {name: mask(each, deliveries(participants, name), vectors[name]) for name, each in participants.items()}


def resigned(party: Party, **changes: object) -> KeyAdvertisement:
    """A party's advertisement with other fields, signed anew by the same identity."""
    changed = party.participant.advertised.model_copy(update=changes)
    return changed.model_copy(update={"signature": party.identity.sign(advertised_bytes(changed))})
