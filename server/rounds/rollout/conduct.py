"""What becomes of a running rollout: looked at with every tick, decided by evidence or by an operator.

A model is promoted once its time is over, its devices do not fare worse and it hears held-out speech well enough. What
is decided is written in one transaction; a server that is killed before decides again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, update

from device_sdk.errors import IdiolectError
from server.operators.accounts import record
from server.problems import Refusal
from server.registry import models as model_registry
from server.registry.models import current_version
from server.registry.retention import check_present
from server.rounds.evaluation import Evaluate, Evaluation
from server.rounds.release_keys import Caps
from server.rounds.rollout import store
from server.rounds.rollout.evidence import judged
from server.rounds.store import find_round, follow_up
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.storage.schema import rollouts

__all__ = ["judge", "promote", "roll_back"]

log = logging.getLogger("idiolect.server")


def judge(database: Database, blobs: BlobStore, evaluate: Evaluate | None, now: float, caps: Caps) -> None:
    """Take the running rollout as far as the evidence goes. caps: of what the next round may charge devices."""
    with database.read() as connection:
        row = store.running(connection)
        if row is None:
            return
        current = current_version(connection, "model")
        verdict = judged(
            store.evidence(connection, row, now), store.read_settings(row), row.looks, now - row.started_at
        )
    if current != row.base:  # an operator published meanwhile
        state = "promoted" if current == row.version else "rolled_back"
        with database.write() as connection:
            _end(connection, row, state, now, f"model {current} was published", {}, caps)
        return
    figures = {} if verdict.p is None else {"p": verdict.p, "allowed": verdict.allowed}
    if verdict.decision == "promote":
        gate = _gate(database, blobs, evaluate, row)
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
        check_present(blobs, model_registry.find_model(connection, row.version))
    gate = Evaluation(note="promoted unheard") if force else _gate(database, blobs, evaluate, row)
    if not gate.passed:
        raise Refusal(409, "worse", f"model {row.version}: {gate.note}; force it, or roll it back", "version")
    with database.write() as connection:
        told = note[:500] or f"promoted by {by}"
        if _end(connection, row, "promoted", now, f"{told}; {gate.note}", dict(gate.figures), caps):
            record(connection, by, "rollout.promote", row.version, now, note)
        return store.view(connection, _again(connection, row), now)


def roll_back(database: Database, now: float, by: str, note: str) -> dict[str, Any]:
    """Give the rollout's devices the model of all others again, at the word of the operator ``by``.

    Raises Refusal: 409 ``no_rollout``.
    """
    with database.write() as connection:
        row = store.require_running(connection)
        _end(connection, row, "rolled_back", now, note[:500] or f"rolled back by {by}", {})
        record(connection, by, "rollout.roll-back", row.version, now, note)
        return store.view(connection, _again(connection, row), now)


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
    made_by = model_registry.find_model(connection, row.version).round_id
    if state == "promoted" and made_by is not None and caps is not None:  # the series of rounds has waited for it
        follow_up(connection, find_round(connection, made_by), now, caps)
    log.info("rollout of model %s %s", row.version, state.replace("_", " "))
    return True


def _gate(database: Database, blobs: BlobStore, evaluate: Evaluate | None, row: Row[Any]) -> Evaluation:
    """The verdict of held-out speech, asked anew: what the model is compared with may not be what it was made from."""
    if evaluate is None:
        return Evaluation()
    with database.read() as connection:
        model, base = (model_registry.find_model(connection, version) for version in (row.version, row.base))
    try:
        return evaluate(model_registry.load(blobs, model.sha256), model_registry.load(blobs, base.sha256))
    except IdiolectError as error:
        return Evaluation(passed=False, note=f"evaluation failed: {error}")


def _again(connection: Connection, row: Row[Any]) -> Row[Any]:
    return next(each for each in store.list_rollouts(connection) if each.id == row.id)
