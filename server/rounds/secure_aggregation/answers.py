"""Devices join a round's groups, answer stage by stage, and are told what to do next.

Every message counts once, however often it comes. The checks are pure; every refusal of one is a ProtocolError that
begins with the name of the field. Whether a masked vector is honest nobody can see: that is the price of masks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row

from device_sdk.errors import ProtocolError
from device_sdk.privacy.quantised import layout_digest
from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.masks import read_words
from device_sdk.secure_aggregation.shares import read_share
from device_sdk.wire import secure_aggregation as wire
from device_sdk.wire.messages import Part
from server.devices.authentication import Sender, spend_nonce
from server.devices.enrolment import find_device
from server.plans.round import RoundSettings
from server.privacy.ledger import Caps
from server.problems import Refusal
from server.registry.marginals import find_marginals, read_counts
from server.registry.models import find_model
from server.rounds.due import busy_in
from server.rounds.reports import check_affordable, check_open, close_if_full, reported_streams
from server.rounds.sampling import check_sampled
from server.rounds.secure_aggregation import store
from server.rounds.secure_aggregation.progress import count, form_groups, move_on
from server.rounds.secure_aggregation.store import Group, StoredGroup, answered_by, is_finished
from server.rounds.secure_aggregation.unmasking import excluded_until
from server.rounds.store import find_round, read_settings

Shapes = Callable[[str, Part], Mapping[str, tuple[int, ...]]]

MESSAGES: Mapping[wire.Stage, type[wire.StageMessage]] = {
    message.stage: message
    for message in (
        *(wire.KeyAdvertisement, wire.DealtShares, wire.MaskedInput),
        *(wire.SurvivorSignature, wire.RevealedShares),
    )
}


def join(
    connection: Connection, sender: Sender, message: wire.KeyAdvertisement, *, caps: Caps, shapes: Shapes, now: float
) -> tuple[wire.StageReceipt, bool]:
    """Take a device's keys; it is in a group as soon as enough others have joined. Returns its receipt and whether that
    closed the round. shapes: of what a delta holds, by the weights' digest and the part. Raises Refusal: 409
    ``replayed``, ``message_conflict``, ``round_closed``, ``not_collected``, ``not_sampled``, ``busy``, ``other_words``,
    ``stale_model``; 403 ``excluded``, ``privacy_cap``; 404 ``unknown_round``; 422 ``bad_message``."""
    spend_nonce(connection, sender, now)
    if (known := _repeated(connection, message)) is not None:
        return known, False
    row = find_round(connection, message.round_id)
    settings, stream = _settings(row)
    check_open(row, settings, stream, now)
    check_sampled(connection, row, sender.device_id)
    if (ends := excluded_until(connection, sender.device_id, now)) is not None:
        detail = f"this device is left out of groups for {ends - now:.0f} s: in one, shares were not what they must be"
        raise Refusal(403, "excluded", detail, "device_id")
    if busy_in(connection, sender.device_id) is not None:
        raise Refusal(409, "busy", "this device is in a group of another round; finish that first", "device_id")
    _check_subject(connection, row, settings, message, shapes)
    check_affordable(connection, sender.device_id, stream, settings, caps)
    device = find_device(connection, sender.device_id)
    assert device is not None
    with _refusing():
        check_advertisement(message, device.public_key)
        check_distinct(message, others := store.waiting(connection, row.id))
    store.keep(connection, message, None, now)
    count(connection, row.id, settings, 1)
    if len(others) + 1 >= settings.groups.size:
        form_groups(connection, row, settings, now)
    return wire.StageReceipt(stage="keys"), close_if_full(connection, row.id, settings, now)


def check_sender(connection: Connection, row: Row[Any], device_id: str, stage: str, now: float) -> int:
    """Before a message is read: whether this device can have one of this stage to send, and how many bytes it has at
    most, where that is more than any message that holds no vector. Raises Refusal: 409 ``not_collected``,
    ``round_closed``, ``not_joined``."""
    settings, stream = _settings(row)
    joined = store.find_message(connection, row.id, device_id, "keys")
    if joined is not None and joined.group_id is not None and stage == "masked":
        roster = store.find_group(connection, joined.group_id).group.roster
        return -(-roster.words * roster.word_bits // 8)
    if joined is None:
        if stage != "keys":
            raise Refusal(409, "not_joined", "this device is in no group of this round", "device_id")
        check_open(row, settings, stream, now)
    return 0


def answer(
    connection: Connection, sender: Sender, message: wire.StageMessage, *, now: float
) -> tuple[wire.StageReceipt, bool]:
    """Take a device's answer at the present stage of its group. Returns its receipt and whether the sum can be taken.
    Raises Refusal: 409 ``replayed``, ``message_conflict``, ``not_collected``, ``not_joined``, ``other_stage``; 404
    ``unknown_round``; 422 ``bad_message``."""
    spend_nonce(connection, sender, now)
    if (known := _repeated(connection, message)) is not None:
        return known, False
    row = find_round(connection, message.round_id)
    settings, _ = _settings(row)
    joined = store.find_message(connection, row.id, sender.device_id, "keys")
    if joined is None or joined.group_id is None:
        raise Refusal(409, "not_joined", "this device is in no group of this round", "device_id")
    stored = store.find_group(connection, joined.group_id)
    if stored.group.stage != message.stage:
        detail = f"stage: found {message.stage}, the group is at {stored.ended or stored.group.stage}"
        raise Refusal(409, "other_stage", detail, "stage")
    try:
        group = answered_by(stored.group, sender.device_id)
    except ProtocolError as error:
        raise Refusal(409, "other_stage", str(error), "stage") from error
    with _refusing():
        check_answer(message, group)
    store.keep(connection, message, stored.id, now)
    if is_finished(group) and message.stage != "unmasking":
        move_on(connection, stored, group, settings, now)
    return wire.StageReceipt(stage=message.stage), is_finished(group) and message.stage == "unmasking"


def _repeated(connection: Connection, message: wire.StageMessage) -> wire.StageReceipt | None:
    known = store.find_message(connection, message.round_id, message.device_id, message.stage)
    if known is None:
        return None
    if known.body_sha256 != sha256(message.body).hexdigest():
        detail = f"this device sent another message at stage {message.stage} of this round"
        raise Refusal(409, "message_conflict", detail, "stage")
    return wire.StageReceipt(stage=message.stage, duplicate=True)


def _settings(row: Row[Any]) -> tuple[RoundSettings, str]:
    """A round's settings, and the stream that its devices add up."""
    settings = read_settings(row)
    if settings.aggregated is None:
        raise Refusal(409, "not_collected", f"round {row.id} has no secure aggregation", "round_id")
    return settings, settings.aggregated


def _check_subject(
    connection: Connection, row: Row[Any], settings: RoundSettings, message: wire.KeyAdvertisement, shapes: Shapes
) -> None:
    """Whether a device's vector is of what the round adds up: all of its values, in one order. Raises Refusal."""
    if settings.aggregated == "deltas" and settings.deltas is not None:
        base = find_model(connection, row.base_model)
        held = shapes(base.sha256, settings.deltas.part)
        subject, words = layout_digest(base.version, held), sum(map(math.prod, held.values()))
        refusal = "stale_model", f"a delta of another model than {base.version}, or of other parameters"
    else:
        marginals = find_marginals(connection, 0)
        subject, words = marginals.words_digest, read_counts(marginals).size
        refusal = "other_words", "counts are over another word list"
    if (message.subject, message.words) != (subject, words):
        code, why = refusal
        raise Refusal(409, code, f"subject: {why}", "subject")


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise Refusal(422, "bad_message", str(error)[:500], str(error).partition(": ")[0][:200]) from error


def check_advertisement(message: wire.KeyAdvertisement, identity_key: bytes) -> None:
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


def check_distinct(message: wire.KeyAdvertisement, others: Iterable[wire.KeyAdvertisement]) -> None:
    """others: of devices that may be in one roster with this one."""
    for other in others:
        for field in ("sharing_key", "masking_key", "seed_commitment"):
            if getattr(message, field) == getattr(other, field):
                raise ProtocolError(f"{field}: another device of this round has the same")


def check_answer(message: wire.StageMessage, group: Group) -> None:
    match message:
        case wire.DealtShares():
            expected = len(group.roster.sealed_for(message.device_id))
            if len(message.sealed) != expected:
                raise ProtocolError(f"sealed: found shares for {len(message.sealed)} devices, expected {expected}")
        case wire.MaskedInput():
            read_words(message.masked, group.roster)
        case wire.SurvivorSignature():
            check_signature(message, group.roster, group.survivors)
        case wire.RevealedShares():
            check_revealed(message, group)


def check_signature(message: wire.SurvivorSignature, roster: wire.Roster, survivors: tuple[str, ...]) -> None:
    """A signature over other survivors is refused here, or it would keep every other device from revealing."""
    content = keys.survivor_bytes(roster.round_id, keys.roster_digest(roster), survivors)
    if not keys.signed_by(roster.member(message.device_id).identity_key, message.signature, content):
        raise ProtocolError(f"signature: not this device's over the {len(survivors)} survivors of its group")


def check_revealed(message: wire.RevealedShares, group: Group) -> None:
    names = group.roster.device_ids
    if len(message.shares) != len(names):
        raise ProtocolError(f"shares: found {len(message.shares)}, expected one place for each of {len(names)} devices")
    for name, content in zip(names, message.shares, strict=True):
        if content == wire.NO_SHARE:
            continue
        if name not in group.dealers:
            raise ProtocolError(f"shares.{name}: found one of a device that dealt none")
        try:
            read_share(content)
        except ProtocolError as error:
            raise ProtocolError(f"shares.{name}: {error}") from error


def next_task(
    connection: Connection, device_id: str, round_id: str, retry_after_seconds: float
) -> wire.AggregationTask:
    """The task of a device that joined. Raises Refusal: 404 ``unknown_round``, 409 ``not_joined``."""
    row = find_round(connection, round_id)
    joined = store.find_message(connection, round_id, device_id, "keys")
    # Often enough to answer within a stage, or a device that is awake would be dropped.
    retry = min(retry_after_seconds, read_settings(row).groups.stage_seconds / 4)
    if joined is None:
        if row.forgotten:  # nobody knows any more whether its counts are in the sum: they are not reported again
            return wire.AggregationTask(stage="done", retry_after_seconds=retry)
        raise Refusal(409, "not_joined", "this device has not joined this round", "device_id")
    if joined.group_id is None:
        return wire.AggregationTask(stage="abandoned" if joined.body is None else "waiting", retry_after_seconds=retry)
    stored = store.find_group(connection, joined.group_id)
    group = stored.group
    survived = device_id in group.answered("masked")
    if stored.ended is not None:
        stage = "abandoned" if stored.ended == "abandoned" else "done" if survived else "dropped"
        if stage == "abandoned" and _settings(row)[1] in reported_streams(connection, device_id, round_id):
            stage = "done"  # the shares that give the sum may be known: what is in it is not reported again
        return wire.AggregationTask.model_validate({"stage": stage, "retry_after_seconds": retry})
    if group.stage is not None and device_id in group.expected - group.answered(group.stage):
        return wire.AggregationTask(
            stage=group.stage, retry_after_seconds=retry, **_needed(connection, stored, device_id)
        )
    late = group.stage is not None and device_id not in group.expected and not survived
    return wire.AggregationTask(stage="dropped" if late else "waiting", retry_after_seconds=retry)


def _needed(connection: Connection, stored: StoredGroup, device_id: str) -> dict[str, Any]:
    """What a device needs for its answer at the present stage."""
    match stored.group.stage:
        case "shares":
            return {"roster": stored.group.roster}
        case "masked":
            dealt = store.answers(connection, stored.id, wire.DealtShares)
            return {"deliveries": deliveries(stored.group.roster, dealt.values(), device_id)}
        case "consistency":
            return {"survivors": stored.group.survivors}
        case _:
            signed = store.answers(connection, stored.id, wire.SurvivorSignature)
            return {"signatures": {name: each.signature for name, each in signed.items()}}


def deliveries(roster: wire.Roster, dealt: Iterable[wire.DealtShares], device_id: str) -> dict[str, bytes]:
    """What others sealed for a device, by sender; empty where the device draws its shares."""
    found = {}
    for each in dealt:
        if each.device_id != device_id:
            receivers = roster.sealed_for(each.device_id)
            sealed = each.sealed[receivers.index(device_id)] if device_id in receivers else b""
            found[each.device_id] = sealed
    return found
