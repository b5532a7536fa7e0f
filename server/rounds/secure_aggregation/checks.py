"""What a message of secure aggregation must look like before it is kept. Pure; every refusal is a ProtocolError that
begins with the name of the field. Whether a masked vector is honest nobody can see: that is the price of masks."""

from __future__ import annotations

from collections.abc import Iterable, Set

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.masks import read_words
from device_sdk.secure_aggregation.shares import read_share
from device_sdk.wire.secure_aggregation import (
    DealtShares,
    KeyAdvertisement,
    MaskedInput,
    RevealedShares,
    Roster,
    SurvivorSignature,
)

__all__ = ["check_advertisement", "check_dealt", "check_distinct", "check_masked", "check_revealed", "check_signature"]


def check_advertisement(message: KeyAdvertisement, identity_key: bytes) -> None:
    """identity_key: the one the device enrolled with."""
    if message.identity_key != identity_key:
        raise ProtocolError("identity_key: found another than this device enrolled with")
    for field in ("sharing_key", "masking_key"):
        if not keys.agreeable(getattr(message, field)):
            raise ProtocolError(f"{field}: found a point of small order, expected one made at random")
    if message.sharing_key == message.masking_key:
        raise ProtocolError("masking_key: found the sharing_key again, expected two keys")
    if not keys.signed_by(identity_key, message.signature, keys.advertised_bytes(message)):
        raise ProtocolError("signature: not that of identity_key over these keys and this round")


def check_distinct(message: KeyAdvertisement, others: Iterable[bytes]) -> None:
    """others: advertisements, as they came, of devices that may be in one roster with this one."""
    for body in others:
        other = KeyAdvertisement.model_validate_json(body)
        for field in ("sharing_key", "masking_key", "seed_commitment"):
            if getattr(message, field) == getattr(other, field):
                raise ProtocolError(f"{field}: another device of this round has the same")


def check_dealt(message: DealtShares, roster: Roster) -> None:
    _check_names("sealed", message.sealed, set(roster.device_ids) - {message.device_id}, exactly=True)


def check_masked(message: MaskedInput, roster: Roster) -> None:
    read_words(message.masked, roster)


def check_signature(message: SurvivorSignature, roster: Roster, survivors: tuple[str, ...]) -> None:
    """A signature over other survivors is refused here, or it would keep every other device from revealing."""
    content = keys.survivor_bytes(roster.round_id, keys.roster_digest(roster), survivors)
    if not keys.signed_by(roster.member(message.device_id).identity_key, message.signature, content):
        raise ProtocolError(f"signature: not this device's over the {len(survivors)} survivors of its group")


def check_revealed(message: RevealedShares, dealers: Set[str], survivors: tuple[str, ...]) -> None:
    _check_names("seeds", message.seeds, set(survivors))
    _check_names("mask_keys", message.mask_keys, dealers - set(survivors))
    for field, shares in (("seeds", message.seeds), ("mask_keys", message.mask_keys)):
        for name, content in shares.items():
            try:
                read_share(content)
            except ProtocolError as error:
                raise ProtocolError(f"{field}.{name}: {error}") from error


def _check_names(field: str, found: Iterable[str], expected: Set[str], *, exactly: bool = False) -> None:
    unknown, missing = set(found) - expected, expected - set(found)
    if unknown:
        raise ProtocolError(f"{field}: found {min(unknown)}, which has no place in it")
    if exactly and missing:
        raise ProtocolError(f"{field}: {min(missing)} is missing; expected one entry for each of {len(expected)}")
