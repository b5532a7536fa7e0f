"""What devices will be charged for sums of groups that go on: a group's devices are charged in the end."""

from sqlalchemy import Connection, or_, select

from server.privacy.charges import Charge, charge_for
from server.rounds.store import find_round, read_settings
from server.storage.schema import aggregation_groups as groups
from server.storage.schema import aggregation_messages as messages
from server.storage.schema import reports, rounds

ENDED = ("done", "abandoned")
"""Stages of a group that goes on no more."""


def busy_in(connection: Connection, device_id: str) -> str | None:
    """The round in which a device waits for a group or is in one that goes on: it is charged only in the end."""
    query = (
        select(messages.c.round_id)
        .join(rounds, rounds.c.id == messages.c.round_id)
        .outerjoin(groups, groups.c.id == messages.c.group_id)
        .where(messages.c.device_id == device_id, messages.c.stage == "keys", messages.c.body.is_not(None))
        .where(rounds.c.state.in_(("open", "closing")))
        .where(or_(groups.c.id.is_(None), groups.c.stage.not_in(ENDED)))
    )
    found: str | None = connection.execute(query).scalar()
    return found


def charged(connection: Connection, round_id: str, stream: str) -> set[str]:
    """Devices that a round of a stream has been charged to."""
    query = select(reports.c.device_id).where(reports.c.round_id == round_id, reports.c.stream == stream)
    return set(connection.execute(query).scalars())


def due(connection: Connection, device_id: str, stream: str) -> list[Charge]:
    """What a device will be charged in a stream for the group that it waits for or is in."""
    busy = busy_in(connection, device_id)
    if busy is None or device_id in charged(connection, busy, stream):
        return []
    settings = read_settings(find_round(connection, busy))
    return [charge_for(stream, settings)] if settings.aggregated == stream else []
