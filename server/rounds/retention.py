"""Which rounds stay whole: thousands of them, of hundreds of reports each, fill a disk.

Of the rounds that have ended, the newest stay, and those whose marginals something still begins from. The others are
forgotten: their reports, their lines of the ledger, the messages of their groups, what they released, how they moved,
and the digests of their keys are deleted, and their marginals' contents. Their rows stay, as those of the models and
marginals that they made do, and the ledger's totals (:mod:`server.privacy.ledger`), so nobody's epsilon changes.

A report of a forgotten round is answered as a duplicate, for nobody knows any more whether it was counted: a device
that was told no would report the same again."""

from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from server.plans.round import NEXT, RoundState
from server.privacy.ledger import settle
from server.registry.models import current_version
from server.storage import schema
from server.storage.database import Database
from server.storage.schema import aggregation_messages, marginals, reports, rollout_devices, rollouts, rounds

BATCH = 200
"""Reports or messages that one transaction deletes: other writers wait for no more than that."""
ROUNDS = 20
"""That are looked at in one go."""

_GOING, _GONE = 1, 2
_ENDED = tuple(state for state in RoundState if not NEXT[state])


def forget_old(database: Database, keep: int, batches: int = 50) -> bool:
    """Delete what single devices and releases left of the rounds before the ``keep`` newest, in at most so many
    transactions. Returns whether that was all; what a killed server left half-way goes on with the next call."""
    with database.read() as connection:
        old = forgettable(connection, keep)
    for row in old:
        gone = False
        while not gone:
            if not batches:
                return False
            batches -= 1
            with database.write() as connection:
                gone = _forget(connection, row)
    return len(old) < ROUNDS


def forgettable(connection: Connection, keep: int) -> list[Row[Any]]:
    """The oldest rounds of which something is left that may go, some at a time."""
    # Counted, for numbers may be left out (:mod:`server.rounds.fence`).
    last = connection.execute(select(rounds.c.number).order_by(rounds.c.number.desc()).offset(keep).limit(1)).scalar()
    if last is None:
        return []
    old = (rounds.c.number <= last, rounds.c.forgotten < _GONE, rounds.c.state.in_(_ENDED))
    # Marginals that what is kept begins from.
    kept = (rounds.c.number > last) | rounds.c.state.not_in(_ENDED)
    used = select(rounds.c.base_marginals).where(kept, rounds.c.base_marginals.is_not(None))
    free = rounds.c.marginals_version.is_(None) | (
        rounds.c.marginals_version.not_in(used)
        & (rounds.c.marginals_version != int(current_version(connection, "marginals")))
    )
    return list(connection.execute(select(rounds).where(*old, free).order_by(rounds.c.number).limit(ROUNDS)))


def _forget(connection: Connection, row: Row[Any]) -> bool:
    """One step of a round's deletion. Returns whether it was the last."""
    own = rounds.c.id == row.id
    connection.execute(update(rounds).where(own).values(forgotten=_GOING))  # from here on the database lets it go
    found = list(connection.execute(select(reports.c.id).where(reports.c.round_id == row.id).limit(BATCH)).scalars())
    if found:
        settle(connection, found)
        connection.execute(delete(reports).where(reports.c.id.in_(found)))
        return False
    tried = select(rollouts.c.id).where(rollouts.c.version == row.model_version, rollouts.c.state != "running")
    for table, of in (
        (aggregation_messages, aggregation_messages.c.round_id == row.id),
        (rollout_devices, rollout_devices.c.rollout_id.in_(tried)),
    ):
        some = list(connection.execute(select(table.c.device_id).where(of).distinct().limit(BATCH)).scalars())
        if some:
            connection.execute(delete(table).where(of, table.c.device_id.in_(some)))
            return False
    for table in (schema.aggregation_groups, schema.transitions, schema.releases, schema.release_keys):
        connection.execute(delete(table).where(table.c.round_id == row.id))
    if row.marginals_version is not None:
        empty = {"probabilities": b"", "counts": b""}
        connection.execute(update(marginals).where(marginals.c.version == row.marginals_version).values(empty))
    connection.execute(update(rounds).where(own).values(forgotten=_GONE))
    return True
