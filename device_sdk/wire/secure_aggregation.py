"""Messages of secure aggregation, version 1: devices add up vectors, of counts or of what they learned, so that the
server sees the sum alone.

    POST /v1/rounds/{round}/aggregation           signed  nothing -> AggregationTask
    POST /v1/rounds/{round}/aggregation/{stage}   signed  KeyAdvertisement, DealtShares, MaskedInput, SurvivorSignature
                                                          or RevealedShares, stage by stage -> StageReceipt

A device polls, does what the task says, and polls again; every message may be sent again and counts once. A device's
messages travel as plain bytes (``body``), since they are nothing else: who sends them and of which round is in the
address and in the signed headers. The server's answers are JSON, bytes in them base64. Bytes of keys, seeds and shares
have one length each: nothing longer or shorter is read."""

import base64
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, model_validator

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import Identifier, Message

Stage = Literal["keys", "shares", "masked", "consistency", "unmasking"]
STAGES: tuple[Stage, ...] = ("keys", "shares", "masked", "consistency", "unmasking")
"""In the order in which a group passes through them."""

MAX_MEMBERS = 256
"""Devices in one roster: what a device computes grows with their number, what the server computes with its square."""

KEY_BYTES, SEED_BYTES = 32, 16
SHARE_BYTES = 17
"""One share of a seed: an element of GF(65537) for every two bytes of it, 17 bits each."""
NO_SHARE = b"\xff" * SHARE_BYTES
"""In place of a share that could not be read: no element of the field has only ones."""
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Two shares under AES-GCM: ciphertext, tag."""
MAX_WORDS = 1 << 20
MAX_MASKED_BYTES = 4_000_000
"""This fits what a server reads of a report."""


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
Key = Annotated[bytes, Field(strict=True, min_length=KEY_BYTES, max_length=KEY_BYTES), *_Base64]
Seed = Annotated[bytes, Field(strict=True, min_length=SEED_BYTES, max_length=SEED_BYTES), *_Base64]
Signature = Annotated[bytes, Field(strict=True, min_length=64, max_length=64), *_Base64]
Share = Annotated[bytes, Field(strict=True, min_length=SHARE_BYTES, max_length=SHARE_BYTES), *_Base64]
Sealed = Annotated[bytes, Field(strict=True, min_length=SEALED_BYTES, max_length=SEALED_BYTES), *_Base64]
Delivery = Annotated[bytes, Field(strict=True, max_length=SEALED_BYTES), *_Base64]
"""Two sealed shares; empty where the receiver draws its own."""
Masked = Annotated[bytes, Field(strict=True, min_length=1, max_length=MAX_MASKED_BYTES), *_Base64]
Seconds = Annotated[float, Field(ge=0)]


class StageMessage(Message):
    """What a device sends at a stage. As bytes it is its fields one after the other, without the ids."""

    stage: ClassVar[Stage]
    device_id: Identifier
    round_id: Identifier

    @property
    def body(self) -> bytes:
        """As it travels."""
        return b"".join(self._parts())

    @classmethod
    def read(cls, body: bytes, device_id: str, round_id: str) -> Self:
        """The message of a device for a round. ProtocolError: it is none, by the name of the first field at fault."""
        try:
            return cls.model_validate({"device_id": device_id, "round_id": round_id, **cls._fields(body)})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = first["loc"][0] if first["loc"] else cls.__name__
            raise ProtocolError(f"{field}: {first['msg']}; the message has {len(body)} bytes") from error

    @abstractmethod
    def _parts(self) -> Iterable[bytes]:
        """Of the body."""

    @classmethod
    @abstractmethod
    def _fields(cls, body: bytes) -> Mapping[str, Any]:
        """Of the message, but for the ids."""


class _Pieces(StageMessage):
    """A message of one field, a tuple of pieces of one length."""

    piece: ClassVar[tuple[str, int]]
    """The field's name, and the bytes of each piece."""

    def _parts(self) -> Iterable[bytes]:
        found: tuple[bytes, ...] = getattr(self, self.piece[0])
        return found

    @classmethod
    def _fields(cls, body: bytes) -> Mapping[str, Any]:
        name, size = cls.piece
        return {name: tuple(body[start : start + size] for start in range(0, len(body), size))}


class KeyAdvertisement(StageMessage):
    """Public keys of one device for one round.

    subject: SHA-256 of what the values of its vector are of: of a word list, or of a model and its parameters
    (:func:`device_sdk.privacy.quantised.layout_digest`); words: how many there are. identity_key: Ed25519, as the
    device enrolled with it. sharing_key, masking_key: X25519, one to encrypt shares and one to agree on masks.
    seed_commitment: SHA-256 of the seed of the device's own mask. signature: of all of it. As bytes, 228 of them: the
    subject's 32, words as four, the lowest first, the four keys of 32 each in this order, the signature's 64."""

    stage: ClassVar[Stage] = "keys"
    subject: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    words: Annotated[int, Field(ge=1, le=MAX_WORDS)]
    identity_key: Key
    sharing_key: Key
    masking_key: Key
    seed_commitment: Key
    signature: Signature

    def _parts(self) -> Iterable[bytes]:
        keys = self.identity_key, self.sharing_key, self.masking_key, self.seed_commitment
        return bytes.fromhex(self.subject), self.words.to_bytes(4, "little"), *keys, self.signature

    @classmethod
    def _fields(cls, body: bytes) -> Mapping[str, Any]:
        names = "identity_key", "sharing_key", "masking_key", "seed_commitment"
        keys = {name: body[start : start + 32] for name, start in zip(names, range(36, 164, 32), strict=True)}
        words = int.from_bytes(body[32:36], "little")
        return {"subject": body[:32].hex(), "words": words, **keys, "signature": body[164:]}


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

    def after(self, device_id: str) -> tuple[str, ...]:
        """All other devices, from the next one on, round the roster. KeyError: not in the roster."""
        point = self.point(device_id)
        return self.device_ids[point:] + self.device_ids[: point - 1]

    def drawn_by(self, device_id: str) -> tuple[str, ...]:
        """Whose shares of a device's secrets are drawn by the two, and never sent: t - 1 others. KeyError."""
        return self.after(device_id)[: self.threshold - 1]

    def sealed_for(self, device_id: str) -> tuple[str, ...]:
        """For whom a device seals its shares, in this order: all others. KeyError."""
        return self.after(device_id)[self.threshold - 1 :]


class DealtShares(_Pieces):
    """One device's shares of its mask key and of its seed, encrypted for the devices of ``Roster.sealed_for``; without
    any it says that the device is there."""

    stage: ClassVar[Stage] = "shares"
    piece: ClassVar[tuple[str, int]] = "sealed", SEALED_BYTES
    sealed: Annotated[tuple[Sealed, ...], Field(max_length=MAX_MEMBERS)]


class MaskedInput(StageMessage):
    """One device's vector plus its masks, modulo 2^b: unsigned words of b bits, one after the other, the lowest bits
    first. It counts as one report."""

    stage: ClassVar[Stage] = "masked"
    masked: Masked

    def _parts(self) -> Iterable[bytes]:
        return (self.masked,)

    @classmethod
    def _fields(cls, body: bytes) -> Mapping[str, Any]:
        return {"masked": body}


class SurvivorSignature(StageMessage):
    """A device's word that it was shown exactly these survivors."""

    stage: ClassVar[Stage] = "consistency"
    signature: Signature

    def _parts(self) -> Iterable[bytes]:
        return (self.signature,)

    @classmethod
    def _fields(cls, body: bytes) -> Mapping[str, Any]:
        return {"signature": body}


class RevealedShares(_Pieces):
    """What one device holds of the others' secrets, in the order of the roster: of the seed of a survivor, of the mask
    key of a device that dropped out, so never of both of one device; :data:`NO_SHARE` of who dealt none, and where it
    could not be read."""

    stage: ClassVar[Stage] = "unmasking"
    piece: ClassVar[tuple[str, int]] = "shares", SHARE_BYTES
    shares: Annotated[tuple[Share, ...], Field(max_length=MAX_MEMBERS)]


class StageReceipt(Message):
    """The server has a message. duplicate: it had it before."""

    stage: Stage
    duplicate: bool = False


class AggregationTask(Message):
    """What the server waits for from this device.

    stage: the message to send; ``waiting`` for nothing yet, ``done`` when the sum was taken with this device in it, or
    may be known, ``dropped`` when it was taken without, ``abandoned`` when none will be. Which other field is present
    depends on it: ``shares`` brings the roster, ``masked`` the shares that others dealt to this device, ``consistency``
    the survivors, ``unmasking`` their signatures. retry_after_seconds: when to poll next."""

    stage: Stage | Literal["waiting", "done", "dropped", "abandoned"]
    retry_after_seconds: Seconds
    roster: Roster | None = None
    deliveries: Annotated[dict[Identifier, Delivery], Field(max_length=MAX_MEMBERS)] | None = None
    survivors: Annotated[tuple[Identifier, ...], Field(max_length=MAX_MEMBERS)] | None = None
    signatures: Annotated[dict[Identifier, Signature], Field(max_length=MAX_MEMBERS)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needs = {"shares": "roster", "masked": "deliveries", "consistency": "survivors", "unmasking": "signatures"}
        for stage, name in needs.items():
            if (self.stage == stage) != (getattr(self, name) is not None):
                raise ValueError(f"{name}: expected exactly where stage is {stage!r}, found stage {self.stage!r}")
        return self
