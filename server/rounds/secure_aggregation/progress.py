"""How groups form and move on: by their devices' answers, by the stage's deadline, or with the end of their round.

What a group has reached is in the database, so a killed server goes on where it was. A device that misses a stage is
out of the round; one whose masked input is there when unmasking begins is charged for it, whatever comes afterwards."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, insert, select, update

from device_sdk.errors import ProtocolError
from device_sdk.wire.secure_aggregation import MaskedInput, RevealedShares, Roster
from server.plans.round import RoundSettings, word_bits
from server.privacy.charges import charge_for
from server.privacy.ledger import record
from server.rounds.reports import own_digest
from server.rounds.secure_aggregation import store
from server.rounds.secure_aggregation.store import Group, StoredGroup, is_finished, next_stage
from server.rounds.secure_aggregation.unmasking import (
    Exclusion,
    check_counts,
    check_sum,
    exclude,
    excluded_by,
    recover_secrets,
    sum_of,
)
from server.rounds.store import find_round, read_settings
from server.storage.database import Database
from server.storage.schema import reports, rounds

log = logging.getLogger("idiolect.server")


def advance_group(database: Database, group_id: int, now: float) -> None:
    """Move a group on whose stage is over: by its answers or by its deadline. A sum is computed outside of the
    transaction that stores it."""
    with database.read() as connection:
        stored = store.find_group(connection, group_id)
    if stored.ended or not (is_finished(stored.group) or stored.deadline <= now):
        return
    unmasked = _unmasked(database, stored) if stored.group.stage == "unmasking" else None
    with database.write() as connection:
        current = store.find_group(connection, stored.id)
        if current.ended or current.group.stage != stored.group.stage:
            return  # another worker was first
        settings = read_settings(find_round(connection, stored.round_id))
        if unmasked is None:
            move_on(connection, current, current.group, settings, now)
            return
        # Charged already, but for a group of a version that charged who was in a sum once it was taken.
        _charge(connection, current.round_id, current.group.survivors, settings, now)
        exclude(connection, current.round_id, unmasked.excluded, now)
        if unmasked.total is None:
            _abandon(connection, current.round_id, current.id, unmasked.note)
        else:
            _finish(connection, current, settings, unmasked.total, unmasked.note)
    for device_id, exclusion in unmasked.excluded.items():
        log.warning("device %s is left out of groups: %s", device_id, exclusion.reason)


def abandon_group(database: Database, round_id: str, group_id: int, note: str) -> None:
    """End a group without its sum, where it goes on."""
    with database.write() as connection:
        if store.is_open(connection, group_id):
            _abandon(connection, round_id, group_id, note)


def settle(database: Database, row: Row[Any], now: float) -> bool:
    """Whether a closing round has all its groups' sums. Those who still waited for others make the last groups."""
    settings = read_settings(row)
    if not settings.aggregated:
        return True
    with database.write() as connection:
        if store.waiting(connection, row.id):
            form_groups(connection, row, settings, now, whole=False)
        return not store.open_groups(connection, row.id)


def abandon_groups(connection: Connection, round_id: str, note: str) -> None:
    """End every group of a round without its sum."""
    store.decline(connection, round_id)
    for group_id in store.open_groups(connection, round_id):
        _abandon(connection, round_id, group_id, note)


def form_groups(
    connection: Connection, row: Row[Any], settings: RoundSettings, now: float, *, whole: bool = True
) -> None:
    """Groups of those who wait: of full size while a round is open, else of all of them, as even as can be."""
    plan = settings.aggregated_plan
    assert plan is not None
    # A sum may be revealed where shares are all of the noise, and never of one device alone.
    size, minimum = settings.groups.size, max(2, plan.minimum_survivors)
    advertised = store.waiting(connection, row.id)
    if whole:
        parts = [advertised[start : start + size] for start in range(0, len(advertised) - size + 1, size)]
    else:
        groups = -(-len(advertised) // size)
        parts = [advertised[index::groups] for index in range(groups)]
    for part in parts:
        if len(part) < minimum:
            count(connection, row.id, settings, -len(part))
            continue
        members = tuple(sorted(part, key=lambda each: each.device_id))
        words = members[0].words  # as all of them: the round's, each was refused with others
        bits = word_bits(plan, len(part), words)
        roster = Roster(round_id=row.id, words=words, word_bits=bits, minimum=minimum, members=members)
        store.add_group(connection, roster, now + settings.groups.stage_seconds)
    if not whole:
        store.decline(connection, row.id)


def move_on(connection: Connection, stored: StoredGroup, group: Group, settings: RoundSettings, now: float) -> None:
    """To the stage after the present one. With the last one the survivors are charged: the next message that comes may
    give their sum away, whether or not the group ever takes it."""
    try:
        following = next_stage(group)
    except ProtocolError as error:
        _abandon(connection, stored.round_id, stored.id, str(error))
        return
    assert following.stage is not None
    store.set_stage(connection, stored.id, following.stage, now + settings.groups.stage_seconds)
    if following.stage == "unmasking":
        _charge(connection, stored.round_id, following.survivors, settings, now)


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """How a group's last stage ends. total: its sum, None where there is none. note: why, and who is left out."""

    total: NDArray[np.int64] | None
    note: str
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)


def _unmasked(database: Database, stored: StoredGroup) -> _Unmasked:
    group, roster = stored.group, stored.group.roster
    try:
        next_stage(group)
    except ProtocolError as error:
        return _Unmasked(None, str(error))
    with database.read() as connection:
        settings = read_settings(find_round(connection, stored.round_id))
        masked = store.answers(connection, stored.id, MaskedInput)
        revealed = store.answers(connection, stored.id, RevealedShares)
    recovered = recover_secrets(roster, group.dealers, masked.keys(), list(revealed.values()))
    excluded = excluded_by(roster, recovered)
    left_out = "; ".join(f"{name}: {each.reason}" for name, each in excluded.items())
    vectors = {name: message.masked for name, message in masked.items()}
    try:
        total = sum_of(roster, group.dealers, vectors, recovered)
        if settings.aggregated == "deltas" and settings.deltas is not None:
            check_sum(total, settings.deltas, len(masked))
        elif settings.aggregated == "marginals" and settings.marginals is not None:
            check_counts(total, settings.marginals, len(masked))
    except ProtocolError as error:
        return _Unmasked(None, "; left out: ".join(filter(None, (str(error), left_out))), excluded)
    return _Unmasked(total, left_out and f"left out: {left_out}", excluded)


def _charge(
    connection: Connection, round_id: str, survivors: Iterable[str], settings: RoundSettings, now: float
) -> None:
    """Reports of the survivors that count for nothing yet, and what each costs; once."""
    stream = settings.aggregated
    assert stream is not None
    charge = charge_for(stream, settings)
    known = select(reports.c.device_id).where(reports.c.round_id == round_id, reports.c.stream == stream)
    for device_id in sorted(set(survivors) - set(connection.execute(known).scalars())):
        message = store.find_message(connection, round_id, device_id, "masked")
        assert message is not None
        report_id = f"group:{own_digest(device_id, round_id)}"  # it has one at most
        own = {"device_id": device_id, "round_id": round_id, "stream": stream}
        # How many utterances there were is the device's own.
        sent = {"body_sha256": message.body_sha256, "size": message.size, "utterances": 0, "accepted_at": now}
        connection.execute(insert(reports).values(id=report_id, **own, **sent, counted=False))
        record(connection, **own, report_id=report_id, charge=charge, now=now, draw=1)


def _finish(
    connection: Connection, stored: StoredGroup, settings: RoundSettings, total: NDArray[np.int64], note: str
) -> None:
    """The sum is there, and the survivors' reports count."""
    survivors = stored.group.survivors
    stream = reports.c.stream == settings.aggregated
    own = (reports.c.round_id == stored.round_id, stream, reports.c.device_id.in_(survivors))
    connection.execute(update(reports).where(*own).values(counted=True))
    count(connection, stored.round_id, settings, len(survivors) - len(stored.group.roster.members))
    store.end(connection, stored.id, total=total, note=note)


def _abandon(connection: Connection, round_id: str, group_id: int, note: str) -> None:
    """What was charged stays charged."""
    with suppress(ValueError):  # damaged settings may be why
        settings = read_settings(find_round(connection, round_id))
        count(connection, round_id, settings, -store.count_members(connection, group_id))
    store.end(connection, group_id, note=note)


def count(connection: Connection, round_id: str, settings: RoundSettings, change: int) -> None:
    """A round's reports under secure aggregation are the devices in it that have not dropped out."""
    counted = f"{settings.aggregated}_reports"
    changed = {counted: rounds.c[counted] + change}
    connection.execute(update(rounds).where(rounds.c.id == round_id).values(changed))
