"""Rollouts: their state in the database, and what becomes of the one that runs, which is looked at with every tick and
decided by evidence or by an operator.

A model is promoted once its time is over, its devices do not fare worse and it hears held-out speech well enough. What
is decided is written in one transaction; a server that is killed before decides again."""

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, case, func, insert, or_, select, update

from device_sdk.wire.rollout import arm_of
from server.operators.accounts import record
from server.plans.round import RolloutSettings
from server.privacy.ledger import Caps
from server.problems import Refusal
from server.registry.models import current_version, find_model, publish
from server.registry.retention import check_present
from server.rounds.evaluation import Evaluate, Evaluation, compare
from server.rounds.rollout.evidence import Evidence, Watched, judge_evidence
from server.rounds.store import find_round, follow_up
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.storage.schema import devices, rollout_devices, rollouts

log = logging.getLogger("idiolect.server")


def judge(database: Database, blobs: BlobStore, evaluate: Evaluate | None, now: float, caps: Caps) -> None:
    """Take the running rollout as far as the evidence goes. caps: of what the next round may charge devices."""
    with database.read() as connection:
        row = running(connection)
        if row is None:
            return
        current = current_version(connection, "model")
        found = evidence(connection, row, now)
        verdict = judge_evidence(found, read_settings(row), row.looks, now - row.started_at)
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
        row = require_running(connection)
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
        row = require_running(connection)
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
    found = running(connection)
    if found is None or found.id != row.id:
        return False
    if state == "promoted" and current_version(connection, "model") not in (row.base, row.version):
        state, note = "rolled_back", f"{note}; another model was published meanwhile"
    end(connection, found, state, now, note, figures)
    made_by = find_model(connection, row.version).round_id
    if state == "promoted" and made_by is not None and caps is not None:  # the series of rounds has waited for it
        follow_up(connection, find_round(connection, made_by), now, caps)
    log.info("rollout of model %s %s", row.version, state.replace("_", " "))
    return True


def _view(connection: Connection, row: Row[Any], now: float) -> dict[str, Any]:
    """As it is after this transaction's changes."""
    return view(connection, connection.execute(select(rollouts).where(rollouts.c.id == row.id)).one(), now)


def begin(connection: Connection, version: str, settings: RolloutSettings, now: float, note: str) -> None:
    """Offer a registered model to its share of the devices from now on. Raises Refusal: 409 ``rollout_running`` while
    another one runs, ``is_current`` for what every device has."""
    other = running(connection)
    if other is not None:
        detail = f"model {other.version} is with its rollout; promote it or roll it back first"
        raise Refusal(409, "rollout_running", detail, "version")
    base = current_version(connection, "model")
    if version == base:
        raise Refusal(409, "is_current", f"model {version} is what every device has already", "version")
    row = {"version": version, "base": base, "settings": settings.model_dump(mode="json"), "state": "running"}
    connection.execute(insert(rollouts).values(**row, looks=0, started_at=now, figures={}, note=note))
    # In the list of publications it is seen by all who look there: signed metadata, and the trail for people.
    publish(connection, "rollout", version, now, f"{100 * settings.share:g} % of the devices; {note}")


def end(connection: Connection, row: Row[Any], state: str, now: float, note: str, figures: Mapping[str, Any]) -> None:
    """state: ``promoted`` or ``rolled_back``; the former also makes the model current."""
    values = {"state": state, "ended_at": now, "note": note, "figures": dict(figures)}
    connection.execute(update(rollouts).where(rollouts.c.id == row.id).values(values))
    if state == "promoted" and current_version(connection, "model") != row.version:
        publish(connection, "model", row.version, now, note)
    publish(connection, "rollout", row.version, now, f"{state.replace('_', ' ')}: {note}")


def running(connection: Connection) -> Row[Any] | None:
    return connection.execute(select(rollouts).where(rollouts.c.state == "running")).first()


def require_running(connection: Connection) -> Row[Any]:
    """Raises Refusal (409)."""
    row = running(connection)
    if row is None:
        raise Refusal(409, "no_rollout", "no model is with a rollout; begin with: idiolect models rollout VERSION")
    return row


def read_settings(row: Row[Any]) -> RolloutSettings:
    return RolloutSettings.model_validate(row.settings)


def model_for(connection: Connection, device_id: str, installed: str, now: float) -> Row[Any]:
    """The model that this device is to have; the current one, or the rollout's. That it came is written down where it
    is watched: who enrolled after the rollout began gets what its arm gets, and decides nothing, so that nobody makes
    up devices that do. installed: the version that it has."""
    current = find_model(connection, current_version(connection, "model"))
    row = running(connection)
    if row is None or row.base != current.version:
        return current
    arm = arm_of(device_id, row.version, read_settings(row).share)
    if arm == "rest":
        return current
    enrolled_at = connection.execute(select(devices.c.enrolled_at).where(devices.c.id == device_id)).scalar_one()
    if enrolled_at > row.started_at:
        return find_model(connection, row.version) if arm == "rollout" else current
    own = and_(rollout_devices.c.rollout_id == row.id, rollout_devices.c.device_id == device_id)
    seen = {"last_seen": now, "installed": arm == "control" or installed == row.version}
    if not connection.execute(update(rollout_devices).where(own).values(seen)).rowcount:
        first = {"rollout_id": row.id, "device_id": device_id, "arm": arm, "first_seen": now}
        connection.execute(insert(rollout_devices).values(first | seen))
    return find_model(connection, row.version) if arm == "rollout" else current


def evidence(connection: Connection, row: Row[Any], now: float) -> Evidence:
    """Of the devices first seen so long ago that they must have come back with the model installed. A device failed
    that has not, or was not heard of since."""
    since = now - read_settings(row).patience
    failed = or_(rollout_devices.c.installed.is_(False), rollout_devices.c.last_seen < since)
    query = (
        select(rollout_devices.c.arm, func.count(), func.sum(case((failed, 1), else_=0)))
        .where(rollout_devices.c.rollout_id == row.id, rollout_devices.c.first_seen <= since)
        .group_by(rollout_devices.c.arm)
    )
    found = {str(arm): Watched(int(devices), int(lost)) for arm, devices, lost in connection.execute(query)}
    return Evidence(found.get("rollout", Watched(0, 0)), found.get("control", Watched(0, 0)))


def list_rollouts(connection: Connection, limit: int = 100) -> list[Row[Any]]:
    """The newest first."""
    return list(connection.execute(select(rollouts).order_by(rollouts.c.id.desc()).limit(limit)))


def view(connection: Connection, row: Row[Any], now: float) -> dict[str, Any]:
    """A rollout as operators see it: devices of either arm, and those of them that were watched for long enough."""
    query = select(rollout_devices.c.arm, func.count()).where(rollout_devices.c.rollout_id == row.id)
    seen = {str(arm): int(devices) for arm, devices in connection.execute(query.group_by(rollout_devices.c.arm))}
    watched = evidence(connection, row, now)
    arms = {
        arm: {"seen": seen.get(arm, 0), "watched": each.devices, "failed": each.failed}
        for arm, each in (("rollout", watched.rollout), ("control", watched.control))
    }
    return {name: value for name, value in row._asdict().items() if name != "id"} | {"arms": arms}
