"""How groups form and move on: by their devices' answers, by the stage's deadline, or with the end of their round.

What a group has reached is in the database, so a killed server goes on where it was. A device that misses a stage is
out of the round; one whose masked input is in the sum is charged for it, whether or not it answered afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, insert, update

from device_sdk.errors import ProtocolError
from device_sdk.wire.secure_aggregation import KeyAdvertisement, MaskedInput, RevealedShares, Roster
from server.privacy.charges import charge_for
from server.privacy.ledger import record
from server.registry.marginals import find_marginals, read_counts
from server.rounds.settings import RoundSettings
from server.rounds.store import find_round, read_settings
from server.secure_aggregation import store
from server.secure_aggregation.coordinator import Group, finished, next_stage
from server.secure_aggregation.settings import group_minimum, word_bits
from server.secure_aggregation.store import StoredGroup
from server.secure_aggregation.unmasking import unmask
from server.storage.database import Database
from server.storage.schema import reports, rounds

__all__ = ["abandon_groups", "advance_groups", "count", "form_groups", "move_on", "settle"]


def advance_groups(database: Database, now: float) -> None:
    """Move on every group whose stage is over: by its answers or by its deadline. A sum is computed outside of the
    transaction that stores it."""
    with database.read() as connection:
        found = [store.find_group(connection, group_id) for group_id in store.open_groups(connection)]
    for stored in found:
        if not (finished(stored.group) or stored.deadline <= now):
            continue
        total, note = _sum(database, stored)
        with database.write() as connection:
            current = store.find_group(connection, stored.id)
            if current.ended or current.group.stage != stored.group.stage:
                continue  # another worker was first
            settings = read_settings(find_round(connection, stored.round_id))
            if current.group.stage != "unmasking":
                move_on(connection, stored.id, current.group, settings, now)
            elif total is None:
                _abandon(connection, current, note)
            else:
                _finish(connection, current, total, settings, now)


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
        _abandon(connection, store.find_group(connection, group_id), note)


def form_groups(
    connection: Connection, row: Row[Any], settings: RoundSettings, now: float, *, whole: bool = True
) -> None:
    """Groups of those who wait: of full size while a round is open, else of all of them, as even as can be."""
    plan = settings.marginals
    assert plan is not None
    size, minimum = settings.groups.size, group_minimum(plan)
    advertised = [KeyAdvertisement.model_validate_json(entry.body) for entry in store.waiting(connection, row.id)]
    if whole:
        parts = [advertised[start : start + size] for start in range(0, len(advertised) - size + 1, size)]
    else:
        groups = -(-len(advertised) // size)
        parts = [advertised[index::groups] for index in range(groups)]
    words = read_counts(find_marginals(connection, 0)).size
    for part in parts:
        if len(part) < minimum:
            count(connection, row.id, -len(part))
            continue
        members = tuple(sorted(part, key=lambda each: each.device_id))
        roster = Roster(
            round_id=row.id, words=words, word_bits=word_bits(plan, len(part)), minimum=minimum, members=members
        )
        store.add_group(connection, roster, now + settings.groups.stage_seconds)
    if not whole:
        store.decline(connection, row.id)


def move_on(connection: Connection, group_id: int, group: Group, settings: RoundSettings, now: float) -> None:
    try:
        following = next_stage(group)
    except ProtocolError as error:
        _abandon(connection, store.find_group(connection, group_id), str(error))
        return
    assert following.stage is not None
    store.set_stage(connection, group_id, following.stage, now + settings.groups.stage_seconds)


def _sum(database: Database, stored: StoredGroup) -> tuple[NDArray[np.int64] | None, str]:
    """(the sum of a group at its last stage, ""), or (None, why there is none)."""
    if stored.group.stage != "unmasking":
        return None, ""
    try:
        next_stage(stored.group)
        with database.read() as connection:
            masked = store.bodies(connection, stored.id, "masked", MaskedInput)
            revealed = store.bodies(connection, stored.id, "unmasking", RevealedShares)
        vectors = {name: message.masked for name, message in masked.items()}
        return unmask(stored.group.roster, stored.group.dealers, vectors, list(revealed.values())), ""
    except ProtocolError as error:
        return None, str(error)


def _finish(
    connection: Connection, stored: StoredGroup, total: NDArray[np.int64], settings: RoundSettings, now: float
) -> None:
    """Sum, reports and charges become true together. A report's id comes from its bytes, which are one of a kind."""
    charge = charge_for("marginals", settings)
    for device_id in stored.group.survivors:
        message = store.find_message(connection, stored.round_id, device_id, "masked")
        assert message is not None
        connection.execute(
            insert(reports).values(
                id=message.body_sha256[:32],
                device_id=device_id,
                round_id=stored.round_id,
                stream="marginals",
                body_sha256=message.body_sha256,
                size=message.size,
                utterances=0,  # how many there were is the device's own
                accepted_at=now,
            )
        )
        record(
            connection,
            device_id=device_id,
            stream="marginals",
            round_id=stored.round_id,
            report_id=message.body_sha256[:32],
            charge=charge,
            now=now,
        )
    count(connection, stored.round_id, len(stored.group.survivors) - len(stored.group.roster.members))
    store.end(connection, stored.id, total=total)


def _abandon(connection: Connection, stored: StoredGroup, note: str) -> None:
    count(connection, stored.round_id, -len(stored.group.roster.members))
    store.end(connection, stored.id, note=note)


def count(connection: Connection, round_id: str, change: int) -> None:
    """A round's reports under secure aggregation are the devices in it that have not dropped out."""
    changed = {"marginals_reports": rounds.c.marginals_reports + change}
    connection.execute(update(rounds).where(rounds.c.id == round_id).values(changed))
