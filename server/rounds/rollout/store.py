"""Rollouts in the database. Every function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, case, func, insert, or_, select, update

from device_sdk.wire.rollout import arm_of
from server.plans.round import RolloutSettings
from server.problems import Refusal
from server.registry.models import current_version, find_model, publish
from server.rounds.rollout.evidence import Evidence, Watched
from server.storage.schema import devices, rollout_devices, rollouts


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
