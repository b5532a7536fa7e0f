"""What becomes of a running rollout: looked at with every tick, decided by evidence or by an operator.

A model is promoted once its time is over, its devices do not fare worse and it hears held-out speech well enough. What
is decided is written in one transaction; a server that is killed before decides again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select, update

from server.operators.accounts import record
from server.problems import Refusal
from server.registry.models import current_version, find_model
from server.registry.retention import check_present
from server.rounds.caps import Caps
from server.rounds.evaluation import Evaluate, Evaluation, compare
from server.rounds.rollout import store
from server.rounds.rollout.evidence import judge_evidence
from server.rounds.store import find_round, follow_up
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.storage.schema import rollouts

log = logging.getLogger("idiolect.server")


def judge(database: Database, blobs: BlobStore, evaluate: Evaluate | None, now: float, caps: Caps) -> None:
    """Take the running rollout as far as the evidence goes. caps: of what the next round may charge devices."""
    with database.read() as connection:
        row = store.running(connection)
        if row is None:
            return
        current = current_version(connection, "model")
        found = store.evidence(connection, row, now)
        verdict = judge_evidence(found, store.read_settings(row), row.looks, now - row.started_at)
    if current != row.base:  # an operator published meanwhile
        state = "promoted" if current == row.version else "rolled_back"
        with database.write() as connection:
            _end(connection, row, state, now, f"model {current} was published", {}, caps)
        return
    figures = {} if verdict.p is None else {"p": verdict.p, "allowed": verdict.allowed}
    if verdict.decision == "promote":
        # Asked anew: what the model is compared with may not be what it was made from.
        gate = compare(database, blobs, evaluate, row.version, row.base)
        note, figures = f"{verdict.note}; {gate.note}", figures | dict(gate.figures)
        with database.write() as connection:
            _end(connection, row, "promoted" if gate.passed else "rolled_back", now, note, figures, caps)
    elif verdict.decision == "roll_back":
        with database.write() as connection:
            _end(connection, row, "rolled_back", now, verdict.note, figures)
    elif verdict.looks > row.looks:
        with database.write() as connection:
            changed = update(rollouts).where(rollouts.c.id == row.id, rollouts.c.state == "running")
            connection.execute(changed.values(looks=verdict.looks, figures=figures))


def promote(
    database: Database,
    blobs: BlobStore,
    evaluate: Evaluate | None,
    now: float,
    by: str,
    note: str,
    *,
    caps: Caps,
    force: bool = False,
) -> dict[str, Any]:
    """Publish the rollout's model to every device, at the word of the operator ``by``. force: also where it hears
    held-out speech worse. Raises Refusal: 409 ``no_rollout``, ``worse``; 410 where its weights are gone."""
    with database.read() as connection:
        row = store.require_running(connection)
        check_present(blobs, find_model(connection, row.version))
    gate = Evaluation(note="promoted unheard")
    if not force and not (gate := compare(database, blobs, evaluate, row.version, row.base)).passed:
        raise Refusal(409, "worse", f"model {row.version}: {gate.note}; force it, or roll it back", "version")
    with database.write() as connection:
        told = note[:500] or f"promoted by {by}"
        if _end(connection, row, "promoted", now, f"{told}; {gate.note}", dict(gate.figures), caps):
            record(connection, by, "rollout.promote", row.version, now, note)
        return _view(connection, row, now)


def roll_back(database: Database, now: float, by: str, note: str) -> dict[str, Any]:
    """Give the rollout's devices the model of all others again, at the word of the operator ``by``. Raises Refusal: 409
    ``no_rollout``."""
    with database.write() as connection:
        row = store.require_running(connection)
        _end(connection, row, "rolled_back", now, note[:500] or f"rolled back by {by}", {})
        record(connection, by, "rollout.roll-back", row.version, now, note)
        return _view(connection, row, now)


def _end(
    connection: Connection,
    row: Row[Any],
    state: str,
    now: float,
    note: str,
    figures: Mapping[str, Any],
    caps: Caps | None = None,
) -> bool:
    """In the caller's transaction; nothing where it has ended meanwhile. Returns whether it ended now. caps: a series
    of rounds goes on within them; None: it does not go on."""
    found = store.running(connection)
    if found is None or found.id != row.id:
        return False
    if state == "promoted" and current_version(connection, "model") not in (row.base, row.version):
        state, note = "rolled_back", f"{note}; another model was published meanwhile"
    store.end(connection, found, state, now, note, figures)
    made_by = find_model(connection, row.version).round_id
    if state == "promoted" and made_by is not None and caps is not None:  # the series of rounds has waited for it
        follow_up(connection, find_round(connection, made_by), now, caps)
    log.info("rollout of model %s %s", row.version, state.replace("_", " "))
    return True


def _view(connection: Connection, row: Row[Any], now: float) -> dict[str, Any]:
    """As it is after this transaction's changes."""
    return store.view(connection, connection.execute(select(rollouts).where(rollouts.c.id == row.id)).one(), now)
