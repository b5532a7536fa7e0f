"""Groups that go on: what their devices will be charged is due, and not in the ledger yet."""

from sqlalchemy import Connection, or_, select

from server.storage.schema import aggregation_groups as groups
from server.storage.schema import aggregation_messages as messages
from server.storage.schema import rounds

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
