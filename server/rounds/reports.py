"""Accepting a report: the report, the round's count and the ledger's line become true together or not at all.

A device numbers its own reports, and whoever sees or guesses the numbers of another, or of what the server makes, must
not be able to take them: reports are stored under ids of which no message can name one (a colon is no part of what it
may send)."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from device_sdk.wire.messages import Receipt
from server.devices.authentication import Sender, spend_nonce
from server.plans.round import STREAMS, RoundSettings, RoundState
from server.privacy.charges import Charge, charge_for
from server.privacy.ledger import Caps, record
from server.problems import Refusal
from server.rounds.due import busy_in
from server.rounds.sampling import check_sampled
from server.rounds.store import find_round, read_settings, transition
from server.storage.database import Database
from server.storage.schema import reports, rounds

log = logging.getLogger("idiolect.server")

UTTERANCES_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Contribution:
    """A report that was parsed and, for deltas, already stored. body: its exact bytes. counts: word id -> fixed-point
    units of a marginal report, or word -> 1 of a report of words; blob: name of a delta's bytes in the blob store.
    model_version: what a delta was made on. loss, word_error: what the device told besides."""

    report_id: str
    round_id: str
    stream: str
    body: bytes
    utterances: int
    counts: Mapping[int, int] | Mapping[str, int] | None = None
    blob: str | None = None
    model_version: str = ""
    loss: float | None = None
    word_error: float | None = None


def accept(
    database: Database, sender: Sender, contribution: Contribution, *, caps: Caps, clock: Callable[[], float]
) -> tuple[Receipt, bool]:
    """Count a report once, in a transaction. Returns its receipt and whether it closed the round by reaching the goal.

    Ids are a device's own. The same id with the same body is answered as a duplicate whatever state the round is in,
    and any id once the round is forgotten (:mod:`server.rounds.retention`).
    Raises Refusal: 409 ``replayed``, ``report_conflict``, ``round_closed``, ``not_collected``, ``not_sampled``,
    ``stale_model``, ``already_reported``; 403 ``privacy_cap``; 404 ``unknown_round``; 422 ``utterances``."""
    with database.write() as connection:
        return _accept(connection, sender, contribution, caps, clock())


def _accept(
    connection: Connection, sender: Sender, contribution: Contribution, caps: Caps, now: float
) -> tuple[Receipt, bool]:
    spend_nonce(connection, sender, now)
    digest = sha256(contribution.body).hexdigest()
    device_id, stream = sender.device_id, contribution.stream
    known = find_report(connection, device_id, contribution.report_id)
    if known is not None and known.body_sha256 != digest:
        raise Refusal(409, "report_conflict", "this report id was used for another report", "report_id")
    row = None if known is not None else find_round(connection, contribution.round_id)
    if row is None or row.forgotten:
        return Receipt(report_id=contribution.report_id, duplicate=True), False
    settings = read_settings(row)
    check_open(row, settings, stream, now)
    check_sampled(connection, row, device_id)
    if contribution.counts is None and contribution.blob is None:
        # The round opened after the body was looked at, so nobody checked its values.
        raise Refusal(409, "round_closed", f"round {row.id} was not open when the report arrived", "round_id")
    if stream == "deltas":
        check_base(row, contribution.model_version)
    if stream in reported_streams(connection, device_id, row.id):
        detail = f"this device already sent its one {stream} report of round {row.id}"
        raise Refusal(409, "already_reported", detail, "device_id")
    check_affordable(connection, device_id, stream, settings, caps)
    if contribution.utterances > UTTERANCES_LIMIT:
        raise Refusal(422, "utterances", f"utterances: expected at most {UTTERANCES_LIMIT}", "utterances")
    counts = contribution.counts
    own = {"device_id": device_id, "round_id": row.id, "stream": stream}
    values = {
        "id": id_of_report(device_id, contribution.report_id),
        **{name: getattr(contribution, name) for name in ("utterances", "blob", "loss", "word_error")},
        "counts": {str(word): count for word, count in counts.items()} if counts is not None else None,
    }
    connection.execute(
        _INSERT, own | values | {"body_sha256": digest, "size": len(contribution.body), "accepted_at": now}
    )
    if not settings.amplified:  # there everyone was charged when the round opened
        charge = charge_for(stream, settings)
        record(connection, **own, report_id=values["id"], charge=charge, now=now, draw=1)
    connection.execute(_COUNT[stream], {"counted": row.id})
    log.debug("round %s takes a report of %s", row.id, stream)
    return Receipt(report_id=contribution.report_id), close_if_full(connection, row.id, settings, now)


def find_report(connection: Connection, device_id: str, report_id: str) -> Row[Any] | None:
    """What a device sent before under an id of its own."""
    return connection.execute(_KNOWN, {"known": id_of_report(device_id, report_id)}).first()


def check_affordable(connection: Connection, device_id: str, stream: str, settings: RoundSettings, caps: Caps) -> None:
    """Raises Refusal (403 ``privacy_cap``)."""
    if not is_affordable(connection, device_id, stream, settings, caps):
        raise Refusal(403, "privacy_cap", f"{stream}: this device's epsilon would pass the cap {caps.of(stream):g}")


def is_affordable(connection: Connection, device_id: str, stream: str, settings: RoundSettings, caps: Caps) -> bool:
    """Whether a device's epsilon stays within the cap with one more report, and with what is due."""
    return caps.allow(connection, device_id, stream, settings, _due(connection, device_id, stream))


def _due(connection: Connection, device_id: str, stream: str) -> Iterator[Charge]:
    """What a device will be charged in a stream for the group that it waits for or is in."""
    busy = busy_in(connection, device_id)
    if busy is not None and stream not in reported_streams(connection, device_id, busy):
        settings = read_settings(find_round(connection, busy))
        if settings.aggregated == stream:
            yield charge_for(stream, settings)


def reported_streams(connection: Connection, device_id: str, round_id: str) -> set[str]:
    """Streams in which the device's one report of the round was accepted."""
    return set(connection.execute(_REPORTED, {"sender": device_id, "asked": round_id}).scalars())


def accepted_size(connection: Connection, device_id: str, round_id: str, stream: str) -> int | None:
    """Bytes of the device's one report of a stream, None where none was accepted."""
    found = connection.execute(_SIZE, {"sender": device_id, "asked": round_id, "stream": stream}).scalar()
    return None if found is None else int(found)


def check_open(row: Row[Any], settings: RoundSettings, stream: str, now: float) -> None:
    """Raises Refusal: 409 ``round_closed``, for a straggler too, ``not_collected``."""
    if row.state != RoundState.OPEN:
        raise Refusal(409, "round_closed", f"round {row.id} is {row.state}; it takes no more reports", "round_id")
    if row.deadline <= now:
        late = f"round {row.id} took reports until its deadline, {now - row.deadline:.0f} s ago"
        raise Refusal(409, "round_closed", late, "round_id")
    if stream not in settings.streams:
        raise Refusal(409, "not_collected", f"round {row.id} does not collect {stream}", "round_id")
    if settings.goal is not None and getattr(row, f"{stream}_reports") >= settings.goal:
        raise Refusal(409, "round_closed", f"round {row.id} has all the {stream} reports it wants", "round_id")


def check_base(row: Row[Any], version: str) -> None:
    """Raises Refusal (409 ``stale_model``) for a delta on another model than the round's."""
    if version != row.base_model:
        detail = f"model_version: delta is on {version}, the round is on {row.base_model}"
        raise Refusal(409, "stale_model", detail, "model_version")


def close_if_full(connection: Connection, round_id: str, settings: RoundSettings, now: float) -> bool:
    """Close a round that has all the reports it wants, in every stream. Returns whether it did."""
    if settings.goal is None:
        return False
    row, goal = find_round(connection, round_id), settings.goal
    if any(getattr(row, f"{stream}_reports") < goal for stream in settings.streams):
        return False
    transition(connection, row, RoundState.CLOSING, now, "goal reached")
    return True


# Every report needs these: they are built once.
_KNOWN = select(reports).where(reports.c.id == bindparam("known"))
_OWN = (reports.c.device_id == bindparam("sender"), reports.c.round_id == bindparam("asked"))
_REPORTED = select(reports.c.stream).where(*_OWN)
_SIZE = select(reports.c.size).where(*_OWN, reports.c.stream == bindparam("stream"))
_INSERT = insert(reports)
_COUNT = {
    stream: update(rounds)
    .where(rounds.c.id == bindparam("counted"))
    .values({f"{stream}_reports": rounds.c[f"{stream}_reports"] + 1})
    for stream in STREAMS
}


def id_of_report(device_id: str, report_id: str) -> str:
    """Of what a device sent under an id of its own: no other device's, whatever that calls its reports. They sort by
    what devices call them: deltas are added in that order, to the same bits whatever a server calls the devices."""
    return f"report:{sha256(report_id.encode()).hexdigest()[:16]}{own_digest(device_id, report_id)}"


def own_digest(device_id: str, name: str) -> str:
    """Of what a device alone has under this name."""
    return sha256(json.dumps([device_id, name]).encode()).hexdigest()[:32]
