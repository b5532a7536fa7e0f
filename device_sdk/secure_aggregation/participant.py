"""A device's part in one secure aggregation: what it keeps, and one pure function for each stage.

    advertise -> share -> mask -> agree -> reveal

Each function takes the participant and what the server sent, and returns the participant with its answer in it;
:func:`answer` calls the one that a task asks for. The same call again changes nothing, so an answer that was lost is
sent again as it was; a call that contradicts an earlier one is refused, so a device never masks two vectors with one
mask, never signs two lists of survivors and never reveals both secrets of one device, whatever the server asks. Keep
the participant before you send its answer.

Refusals are ProtocolError for messages that no honest server would send, and PrivacyError for what would reveal more
than the sum. After either, the device takes no further part in this round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.secure_aggregation import keys, masks
from device_sdk.secure_aggregation.shares import Elements, read_share, split, to_bytes, uniform
from device_sdk.wire import secure_aggregation as wire


class Participant(BaseModel):
    """All that a device keeps of one round, written to the encrypted state between stages. sharing: private X25519 key;
    masking: seed of the other one, which masks are agreed on with; seed: of the device's own mask. minimum: what this
    device demands of a roster. The rest comes stage by stage: roster, own_share of the seed and dealt; deliveries and
    masked; survivors and agreed; revealed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sharing: wire.Key
    masking: wire.Seed
    seed: wire.Seed
    minimum: int
    advertised: wire.KeyAdvertisement
    roster: wire.Roster | None = None
    own_share: wire.Share | None = None
    dealt: wire.DealtShares | None = None
    deliveries: dict[str, wire.Delivery] | None = None
    masked: wire.MaskedInput | None = None
    survivors: tuple[str, ...] | None = None
    agreed: wire.SurvivorSignature | None = None
    revealed: wire.RevealedShares | None = None

    @property
    def device_id(self) -> str:
        return self.advertised.device_id

    @property
    def words(self) -> int:
        return self.advertised.words

    @property
    def round_id(self) -> str:
        return self.advertised.round_id


def advertise(
    identity: Ed25519PrivateKey, device_id: str, round_id: str, *, subject: str, words: int, minimum: int
) -> Participant:
    """Stage 1: fresh keys, signed. subject: what the vector is of; words: its length. minimum: the fewest devices to
    reveal a sum of."""
    sharing, masking, seed = os.urandom(wire.KEY_BYTES), os.urandom(wire.SEED_BYTES), os.urandom(wire.SEED_BYTES)
    unsigned = wire.KeyAdvertisement(
        device_id=device_id,
        round_id=round_id,
        subject=subject,
        words=words,
        identity_key=identity.public_key().public_bytes_raw(),
        sharing_key=keys.public_key(sharing),
        masking_key=keys.public_key(keys.mask_key(masking)),
        seed_commitment=keys.commitment(seed),
        signature=bytes(64),
    )
    advertised = unsigned.model_copy(update={"signature": identity.sign(keys.advertised_bytes(unsigned))})
    return Participant(sharing=sharing, masking=masking, seed=seed, minimum=minimum, advertised=advertised)


def share(participant: Participant, roster: wire.Roster) -> Participant:
    """Stage 2: shares of the mask key and of the seed for every other device of the roster, sealed for those that do
    not draw theirs. No chance is in it but that of the keys: the same roster always gets the same answer."""
    if participant.roster is not None:
        return participant if roster == participant.roster else _contradiction("roster")
    _check_roster(participant, roster)
    digest, count = keys.roster_digest(roster), len(roster.members)
    private, own = keys.load_private_key(participant.sharing), participant.device_id
    drawn = {
        roster.point(name): _drawn_shares(private, roster.member(name), own, name, digest)
        for name in roster.drawn_by(own)
    }
    of_mask_key = split(participant.masking, {point: first for point, (first, _) in drawn.items()}, count)
    of_seed = split(participant.seed, {point: second for point, (_, second) in drawn.items()}, count)
    sealed = tuple(
        keys.seal(
            _sharing_key(private, roster.member(name), own, name, digest),
            of_mask_key[roster.point(name)] + of_seed[roster.point(name)],
            *(roster.round_id, own, name),
        )
        for name in roster.sealed_for(own)
    )
    dealt = wire.DealtShares(device_id=own, round_id=roster.round_id, sealed=sealed)
    own_share = of_seed[roster.point(own)]
    return participant.model_copy(update={"roster": roster, "own_share": own_share, "dealt": dealt})


def mask(participant: Participant, deliveries: Mapping[str, bytes], vector: NDArray[np.int64]) -> Participant:
    """Stage 3: the vector plus a mask for every device that dealt shares, plus the device's own. deliveries: what the
    others dealt to this device, by sender; they are opened when they are needed, at the end. vector: int64 [words]. The
    first call decides: later ones leave the vector unread."""
    if participant.deliveries is not None:
        return participant if dict(deliveries) == participant.deliveries else _contradiction("deliveries")
    roster, own = _roster(participant), participant.device_id
    _check_names("deliveries", deliveries, set(roster.device_ids) - {own})
    if len(deliveries) + 1 < roster.threshold:
        _too_few("deliveries", len(deliveries) + 1, roster)
    digest = keys.roster_digest(roster)
    total = masks.to_words(vector, roster) + masks.own_mask(participant.seed, own, roster, digest)
    private = keys.load_private_key(keys.mask_key(participant.masking))
    for peer in deliveries:
        total += masks.pair_mask(private, own, peer, roster, digest)
    masked = wire.MaskedInput(device_id=own, round_id=roster.round_id, masked=masks.pack(total, roster))
    return participant.model_copy(update={"deliveries": dict(deliveries), "masked": masked})


def agree(participant: Participant, identity: Ed25519PrivateKey, survivors: tuple[str, ...]) -> Participant:
    """Stage 4: signs the list of those whose masked inputs the server has. One list a round, and no second."""
    if participant.survivors is not None:
        return participant if survivors == participant.survivors else _contradiction("survivors")
    roster, own = _roster(participant), participant.device_id
    if participant.deliveries is None:
        _out_of_turn("survivors")
    _check_names("survivors", survivors, {own, *participant.deliveries})
    if list(survivors) != sorted(set(survivors)) or own not in survivors:
        raise ProtocolError("survivors: expected each once, sorted, and this device among them")
    if len(survivors) < roster.threshold:
        _too_few("survivors", len(survivors), roster)
    content = keys.survivor_bytes(roster.round_id, keys.roster_digest(roster), survivors)
    agreed = wire.SurvivorSignature(device_id=own, round_id=roster.round_id, signature=identity.sign(content))
    return participant.model_copy(update={"survivors": survivors, "agreed": agreed})


def reveal(participant: Participant, signatures: Mapping[str, bytes]) -> Participant:
    """Stage 5: shares of the survivors' seeds and of the others' mask keys, once enough survivors signed the same list
    as this device did. A share that this device cannot read is left out: the others' may do."""
    if participant.revealed is not None:
        return participant
    roster, own, survivors = _roster(participant), participant.device_id, participant.survivors
    if survivors is None or participant.deliveries is None or participant.own_share is None:
        _out_of_turn("signatures")
    _check_names("signatures", signatures, set(survivors))
    content = keys.survivor_bytes(roster.round_id, keys.roster_digest(roster), survivors)
    for name, signature in signatures.items():
        if not keys.signed_by(roster.member(name).identity_key, signature, content):
            found = f"none of the {len(survivors)} survivors that this device signed"
            why = "devices were shown different survivors, and nothing is revealed"
            raise PrivacyError(f"signatures: {name}: found {found}; {why}")
    if len(signatures.keys() | {own}) < roster.threshold:
        _too_few("signatures", len(signatures.keys() | {own}), roster)
    held = _held(participant, roster) | {own: (wire.NO_SHARE, participant.own_share)}
    nothing = wire.NO_SHARE, wire.NO_SHARE
    shares = tuple(held.get(name, nothing)[name in survivors] for name in roster.device_ids)
    revealed = wire.RevealedShares(device_id=own, round_id=roster.round_id, shares=shares)
    return participant.model_copy(update={"revealed": revealed})


def answer(
    participant: Participant,
    identity: Ed25519PrivateKey,
    task: wire.AggregationTask,
    vector: Callable[[], NDArray[np.int64]],
) -> tuple[Participant, wire.StageMessage | None]:
    """What a task asks for: (the participant after it, the message to send; None where there is none). vector: makes
    what the device adds, int64 [words]; called once, when it is masked."""
    if task.roster is not None:
        return (after := share(participant, task.roster)), after.dealt
    if task.deliveries is not None:
        added = np.zeros(participant.words, np.int64) if participant.masked is not None else vector()
        return (after := mask(participant, task.deliveries, added)), after.masked
    if task.survivors is not None:
        return (after := agree(participant, identity, task.survivors)), after.agreed
    if task.signatures is not None:
        return (after := reveal(participant, task.signatures)), after.revealed
    return participant, None


def _held(participant: Participant, roster: wire.Roster) -> dict[str, tuple[bytes, bytes]]:
    """(share of the mask key, share of the seed) by the device whose they are, as far as they can be read."""
    digest, private, own = keys.roster_digest(roster), keys.load_private_key(participant.sharing), participant.device_id
    held = {}
    for name, sealed in (participant.deliveries or {}).items():
        peer = roster.member(name)
        if own in roster.drawn_by(name):
            of_mask_key, of_seed = _drawn_shares(private, peer, name, own, digest)
            held[name] = to_bytes(of_mask_key), to_bytes(of_seed)
            continue
        try:
            key = _sharing_key(private, peer, name, own, digest)
            content = keys.open_sealed(key, sealed, roster.round_id, name, own)
            read_share(first := content[: wire.SHARE_BYTES])
            read_share(second := content[wire.SHARE_BYTES :])
        except ProtocolError:
            continue
        held[name] = first, second
    return held


def _drawn_shares(
    private: X25519PrivateKey, peer: wire.KeyAdvertisement, sender: str, receiver: str, digest: bytes
) -> tuple[Elements, Elements]:
    """The receiver's shares of the sender's mask key and seed, where the two draw them."""
    elements = wire.SEED_BYTES // 2
    names = peer.round_id, sender, receiver
    stream = keys.agreed_key(private, peer.sharing_key, digest, "drawn shares", *names, size=2 * 8 * elements)
    drawn = uniform(stream)
    return drawn[:elements], drawn[elements:]


def _sharing_key(
    private: X25519PrivateKey, peer: wire.KeyAdvertisement, sender: str, receiver: str, digest: bytes
) -> bytes:
    return keys.agreed_key(private, peer.sharing_key, digest, "share", peer.round_id, sender, receiver)


def _check_roster(participant: Participant, roster: wire.Roster) -> None:
    if roster.round_id != participant.round_id:
        raise ProtocolError(f"roster: round_id: found {roster.round_id}, expected {participant.round_id}")
    if roster.words != participant.words:
        raise ProtocolError(f"roster: words: found {roster.words}, expected {participant.words}")
    if roster.minimum < participant.minimum:
        raise PrivacyError(f"roster: minimum: found {roster.minimum}, expected at least {participant.minimum}")
    if participant.advertised not in roster.members:
        raise ProtocolError("roster: expected this device's own keys in it, as they were advertised")
    for member in roster.members:
        if not keys.signed_by(member.identity_key, member.signature, keys.advertised_bytes(member)):
            raise ProtocolError(f"roster: {member.device_id}: signature: not that of its identity key over its keys")


def _check_names(field: str, found: Mapping[str, bytes] | tuple[str, ...], expected: set[str]) -> None:
    if unknown := set(found) - expected:
        raise ProtocolError(f"{field}: found {min(unknown)[:64]}, expected devices that took part so far")


def _roster(participant: Participant) -> wire.Roster:
    if participant.roster is None:
        _out_of_turn("roster")
    return participant.roster


def _too_few(field: str, found: int, roster: wire.Roster) -> NoReturn:
    expected = f"at least {roster.threshold}: a sum over fewer says too much about each"
    raise PrivacyError(f"{field}: found {found} of {len(roster.members)} devices, expected {expected}")


def _contradiction(field: str) -> NoReturn:
    raise PrivacyError(f"{field}: differs from what this device answered before in this round; nothing is revealed")


def _out_of_turn(field: str) -> NoReturn:
    raise ProtocolError(f"{field}: the stage before it has not been reached by this device")
