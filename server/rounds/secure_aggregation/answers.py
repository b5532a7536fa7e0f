"""Devices join a round's groups and answer stage by stage. Every message counts once, however often it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import Message
from device_sdk.wire.secure_aggregation import (
    DealtShares,
    KeyAdvertisement,
    MaskedInput,
    RevealedShares,
    Stage,
    StageReceipt,
    SurvivorSignature,
)
from server.devices.authentication import Sender, spend_nonce
from server.devices.enrolment import find_device
from server.plans.round import RoundSettings
from server.problems import Refusal
from server.registry.marginals import find_marginals
from server.rounds.reports import affordable, check_open, close_if_full
from server.rounds.sampling import check_sampled
from server.rounds.secure_aggregation import checks, store
from server.rounds.secure_aggregation.coordinator import Group, answered_by, finished
from server.rounds.secure_aggregation.exclusions import excluded_until
from server.rounds.secure_aggregation.progress import count, form_groups, move_on
from server.rounds.store import find_round, read_settings

__all__ = ["MESSAGES", "Envelope", "answer", "check_sender", "join"]

MESSAGES: Mapping[Stage, type[Message]] = {
    "keys": KeyAdvertisement,
    "shares": DealtShares,
    "masked": MaskedInput,
    "consistency": SurvivorSignature,
    "unmasking": RevealedShares,
}

_CHECKS: Mapping[Stage, Callable[[Any, Group], None]] = {
    "shares": lambda message, group: checks.check_dealt(message, group.roster),
    "masked": lambda message, group: checks.check_masked(message, group.roster),
    "consistency": lambda message, group: checks.check_signature(message, group.roster, group.survivors),
    "unmasking": lambda message, group: checks.check_revealed(message, group.dealers, group.survivors),
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message as it came. body: its exact bytes."""

    round_id: str
    stage: Stage
    message: Any
    body: bytes

    @property
    def sha256(self) -> str:
        return sha256(self.body).hexdigest()


def join(
    connection: Connection, sender: Sender, envelope: Envelope, *, cap: float, delta: float, now: float
) -> tuple[StageReceipt, bool]:
    """Take a device's keys; it is in a group as soon as enough others have joined. Returns its receipt and whether that
    closed the round.

    Raises Refusal: 409 ``replayed``, ``message_conflict``, ``round_closed``, ``not_collected``, ``not_sampled``,
    ``busy``, ``other_words``; 403 ``excluded``, ``privacy_cap``; 404 ``unknown_round``; 422 ``bad_message``.
    """
    spend_nonce(connection, sender, now)
    if (known := _repeated(connection, sender, envelope)) is not None:
        return known, False
    row = find_round(connection, envelope.round_id)
    settings = _settings(row)
    check_open(row, settings, "marginals", now)
    check_sampled(connection, row, sender.device_id)
    if (ends := excluded_until(connection, sender.device_id, now)) is not None:
        detail = f"this device is left out of groups for {ends - now:.0f} s: in one, shares were not what they must be"
        raise Refusal(403, "excluded", detail, "device_id")
    if store.is_busy(connection, sender.device_id):
        raise Refusal(409, "busy", "this device is in a group of another round; finish that first", "device_id")
    if envelope.message.words_digest != find_marginals(connection, 0).words_digest:
        raise Refusal(409, "other_words", "words_digest: counts are over another word list", "words_digest")
    if not affordable(connection, sender.device_id, "marginals", settings, cap, delta):
        raise Refusal(403, "privacy_cap", f"marginals: this device's epsilon would pass the cap {cap:g}")
    device = find_device(connection, sender.device_id)
    assert device is not None
    with _refusing():
        checks.check_advertisement(envelope.message, device.public_key)
        checks.check_distinct(envelope.message, [entry.body for entry in store.waiting(connection, row.id)])
    store.keep(connection, row.id, sender.device_id, "keys", envelope.body, None, now)
    count(connection, row.id, 1)
    if len(store.waiting(connection, row.id)) >= settings.groups.size:
        form_groups(connection, row, settings, now)
    return StageReceipt(stage="keys"), close_if_full(connection, row.id, settings, now)


def check_sender(connection: Connection, row: Row[Any], device_id: str, stage: str, now: float) -> None:
    """Before a message is read: whether this device can have one of this stage to send.

    Raises Refusal: 409 ``not_collected``, ``round_closed``, ``not_joined``.
    """
    settings = _settings(row)
    joined = store.find_message(connection, row.id, device_id, "keys")
    if joined is not None:
        return
    if stage != "keys":
        raise Refusal(409, "not_joined", "this device is in no group of this round", "device_id")
    check_open(row, settings, "marginals", now)


def answer(connection: Connection, sender: Sender, envelope: Envelope, *, now: float) -> tuple[StageReceipt, bool]:
    """Take a device's answer at the present stage of its group. Returns its receipt and whether the sum can be taken.

    Raises Refusal: 409 ``replayed``, ``message_conflict``, ``not_collected``, ``not_joined``, ``other_stage``;
    404 ``unknown_round``; 422 ``bad_message``.
    """
    spend_nonce(connection, sender, now)
    if (known := _repeated(connection, sender, envelope)) is not None:
        return known, False
    row = find_round(connection, envelope.round_id)
    settings = _settings(row)
    joined = store.find_message(connection, row.id, sender.device_id, "keys")
    if joined is None or joined.group_id is None:
        raise Refusal(409, "not_joined", "this device is in no group of this round", "device_id")
    stored = store.find_group(connection, joined.group_id)
    if stored.group.stage != envelope.stage:
        detail = f"stage: found {envelope.stage}, the group is at {stored.ended or stored.group.stage}"
        raise Refusal(409, "other_stage", detail, "stage")
    try:
        group = answered_by(stored.group, sender.device_id)
    except ProtocolError as error:
        raise Refusal(409, "other_stage", str(error), "stage") from error
    with _refusing():
        _CHECKS[envelope.stage](envelope.message, group)
    store.keep(connection, row.id, sender.device_id, envelope.stage, envelope.body, stored.id, now)
    if finished(group) and envelope.stage != "unmasking":
        move_on(connection, stored, group, settings, now)
    return StageReceipt(stage=envelope.stage), finished(group) and envelope.stage == "unmasking"


def _repeated(connection: Connection, sender: Sender, envelope: Envelope) -> StageReceipt | None:
    known = store.find_message(connection, envelope.round_id, sender.device_id, envelope.stage)
    if known is None:
        return None
    if known.body_sha256 != envelope.sha256:
        detail = f"this device sent another message at stage {envelope.stage} of this round"
        raise Refusal(409, "message_conflict", detail, "stage")
    return StageReceipt(stage=envelope.stage, duplicate=True)


def _settings(row: Row[Any]) -> RoundSettings:
    settings = read_settings(row)
    if not settings.aggregated:
        raise Refusal(409, "not_collected", f"round {row.id} has no secure aggregation", "round_id")
    return settings


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise Refusal(422, "bad_message", str(error)[:500], str(error).partition(": ")[0][:200]) from error
