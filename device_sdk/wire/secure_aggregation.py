"""Messages of secure aggregation, version 1: devices add up vectors, of counts or of what they learned, so that the
server sees the sum alone.

    POST /v1/rounds/{round}/aggregation           signed  AggregationPoll -> AggregationTask
    POST /v1/rounds/{round}/aggregation/{stage}   signed  KeyAdvertisement, DealtShares, MaskedInput, SurvivorSignature
                                                          or RevealedShares, stage by stage -> StageReceipt

A device polls, does what the task says, and polls again; every message may be sent again and counts once. Bytes travel
as base64, and bytes of keys, seeds and shares have one length each: nothing longer or shorter is read."""

import base64
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from device_sdk.wire.messages import Identifier, Message

Stage = Literal["keys", "shares", "masked", "consistency", "unmasking"]
STAGES: tuple[Stage, ...] = ("keys", "shares", "masked", "consistency", "unmasking")
"""In the order in which a group passes through them."""

MAX_MEMBERS = 256
"""Devices in one roster: what a device computes grows with their number, what the server computes with its square."""

SECRET_BYTES = 32
SHARE_BYTES = 64
"""One share of a secret: an element of GF(65537) for every two bytes of it, four bytes each, little-endian."""
SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
"""Two shares under AES-GCM: nonce, ciphertext, tag."""
MAX_WORDS = 1 << 20
MAX_MASKED_BYTES = 3_000_000
"""As base64 this fits what a server reads of a report."""


def _decoded(value: object) -> object:
    """Base64 text as bytes; bytes stay. Only what encoding those bytes gives is read, so bytes have one text each."""
    if not isinstance(value, str):
        return value
    try:
        content = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"found no base64 ({error})") from error
    if base64.b64encode(content).decode() != value:
        raise ValueError("found base64 with stray bits or padding")
    return content


_Base64 = (BeforeValidator(_decoded), PlainSerializer(lambda value: base64.b64encode(value).decode(), return_type=str))
Secret = Annotated[bytes, Field(strict=True, min_length=SECRET_BYTES, max_length=SECRET_BYTES), *_Base64]
Signature = Annotated[bytes, Field(strict=True, min_length=64, max_length=64), *_Base64]
Share = Annotated[bytes, Field(strict=True, min_length=SHARE_BYTES, max_length=SHARE_BYTES), *_Base64]
Sealed = Annotated[bytes, Field(strict=True, min_length=SEALED_BYTES, max_length=SEALED_BYTES), *_Base64]
Masked = Annotated[bytes, Field(strict=True, min_length=1, max_length=MAX_MASKED_BYTES), *_Base64]
Seconds = Annotated[float, Field(ge=0)]


class KeyAdvertisement(Message):
    """Public keys of one device for one round.

    subject: SHA-256 of what the values of its vector are of: of a word list, or of a model and its parameters
    (:func:`device_sdk.privacy.quantised.layout_digest`); words: how many there are. identity_key: Ed25519, as the
    device enrolled with it. sharing_key, masking_key: X25519, one to encrypt shares and one to agree on masks.
    seed_commitment: SHA-256 of the seed of the device's own mask. signature: of all of it."""

    device_id: Identifier
    round_id: Identifier
    subject: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    words: Annotated[int, Field(ge=1, le=MAX_WORDS)]
    identity_key: Secret
    sharing_key: Secret
    masking_key: Secret
    seed_commitment: Secret
    signature: Signature


class Roster(Message):
    """The devices that add up their vectors together, sorted by id, and how.

    words: length of every vector. word_bits: b of the modulus 2^b. minimum: the fewest devices whose sum may be
    revealed, whatever the size of the roster."""

    round_id: Identifier
    words: Annotated[int, Field(ge=1, le=MAX_WORDS)]
    word_bits: Annotated[int, Field(ge=8, le=64)]
    minimum: Annotated[int, Field(ge=2, le=MAX_MEMBERS)]
    members: Annotated[tuple[KeyAdvertisement, ...], Field(min_length=2, max_length=MAX_MEMBERS)]

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        names = self.device_ids
        if list(names) != sorted(set(names)):
            raise ValueError("members: expected every device once, sorted by id")
        for name in ("identity_key", "sharing_key", "masking_key", "seed_commitment"):
            if len({getattr(member, name) for member in self.members}) < len(self.members):
                raise ValueError(f"members: found the same {name} twice, expected one device for each")
        if self.threshold > len(self.members):
            raise ValueError(f"members: found {len(self.members)} devices, expected at least minimum = {self.minimum}")
        if any(member.round_id != self.round_id for member in self.members):
            raise ValueError(f"members: found keys for another round, expected {self.round_id}")
        if len({member.subject for member in self.members}) > 1:
            raise ValueError("members: found vectors of different things, expected one subject")
        if any(member.words != self.words for member in self.members):
            raise ValueError(f"members: found vectors of another length, expected words = {self.words}")
        return self

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(member.device_id for member in self.members)

    @property
    def threshold(self) -> int:
        """t: two thirds of the devices, rounded up, and no fewer than ``minimum``. So many shares give a secret, and so
        many devices must be left at every stage."""
        return max(-(-2 * len(self.members) // 3), self.minimum)

    def point(self, device_id: str) -> int:
        """Which share is the device's, counted from 1. KeyError: not in the roster."""
        try:
            return self.device_ids.index(device_id) + 1
        except ValueError:
            raise KeyError(device_id) from None

    def member(self, device_id: str) -> KeyAdvertisement:
        """KeyError: not in the roster."""
        return self.members[self.point(device_id) - 1]


class DealtShares(Message):
    """One device's shares of its mask key and of its seed, encrypted for every other device of the roster."""

    device_id: Identifier
    round_id: Identifier
    sealed: Annotated[dict[Identifier, Sealed], Field(min_length=1, max_length=MAX_MEMBERS)]


class MaskedInput(Message):
    """One device's vector plus its masks, modulo 2^b: unsigned words of b bits, one after the other, the lowest bits
    first. It counts as one report."""

    device_id: Identifier
    round_id: Identifier
    masked: Masked


class SurvivorSignature(Message):
    """A device's word that it was shown exactly these survivors."""

    device_id: Identifier
    round_id: Identifier
    signature: Signature


class RevealedShares(Message):
    """What one device holds of the others' secrets: of the seed of every survivor, or of the mask key of a device that
    dropped out. Never both of one device; shares that could not be read are left out."""

    device_id: Identifier
    round_id: Identifier
    seeds: Annotated[dict[Identifier, Share], Field(max_length=MAX_MEMBERS)]
    mask_keys: Annotated[dict[Identifier, Share], Field(max_length=MAX_MEMBERS)]

    @model_validator(mode="after")
    def _never_both(self) -> Self:
        if both := self.seeds.keys() & self.mask_keys.keys():
            raise ValueError(f"seeds, mask_keys: found both of {min(both)}, expected one of the two")
        return self


class StageReceipt(Message):
    """The server has a message. duplicate: it had it before."""

    stage: Stage
    duplicate: bool = False


class AggregationPoll(Message):
    """A device asks what there is to do."""

    device_id: Identifier
    round_id: Identifier


class AggregationTask(Message):
    """What the server waits for from this device.

    stage: the message to send; ``waiting`` for nothing yet, ``done`` when the sum was taken with this device in it,
    ``dropped`` when it was taken without, ``abandoned`` when none will be. Which other field is present depends on it:
    ``shares`` brings the roster, ``masked`` the shares that others dealt to this device, ``consistency`` the survivors,
    ``unmasking`` their signatures. retry_after_seconds: when to poll next."""

    stage: Stage | Literal["waiting", "done", "dropped", "abandoned"]
    retry_after_seconds: Seconds
    roster: Roster | None = None
    deliveries: Annotated[dict[Identifier, Sealed], Field(max_length=MAX_MEMBERS)] | None = None
    survivors: Annotated[tuple[Identifier, ...], Field(max_length=MAX_MEMBERS)] | None = None
    signatures: Annotated[dict[Identifier, Signature], Field(max_length=MAX_MEMBERS)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needs = {"shares": "roster", "masked": "deliveries", "consistency": "survivors", "unmasking": "signatures"}
        for stage, name in needs.items():
            if (self.stage == stage) != (getattr(self, name) is not None):
                raise ValueError(f"{name}: expected exactly where stage is {stage!r}, found stage {self.stage!r}")
        return self
