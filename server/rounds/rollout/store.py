"""Canaries in the database. Every function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, case, func, insert, or_, select, update

from device_sdk.wire.canary import arm_of
from server.plans.rollout import CanarySettings
from server.problems import Refusal
from server.registry.models import find_model
from server.registry.publications import current_version, publish
from server.rounds.rollout.evidence import Evidence, Watched
from server.storage.schema import canaries, canary_devices, devices

__all__ = [
    "begin",
    "end",
    "evidence",
    "list_canaries",
    "model_for",
    "read_settings",
    "require_running",
    "running",
    "view",
]


def begin(connection: Connection, version: str, settings: CanarySettings, now: float, note: str) -> None:
    """Offer a registered model to its share of the devices from now on.

    Raises Refusal: 409 ``canary_running`` while another one runs, ``is_current`` for what every device has.
    """
    other = running(connection)
    if other is not None:
        detail = f"model {other.version} is with its canary; promote it or roll it back first"
        raise Refusal(409, "canary_running", detail, "version")
    base = current_version(connection, "model")
    if version == base:
        raise Refusal(409, "is_current", f"model {version} is what every device has already", "version")
    connection.execute(
        insert(canaries).values(
            version=version,
            base=base,
            settings=settings.model_dump(mode="json"),
            state="running",
            looks=0,
            started_at=now,
            figures={},
            note=note,
        )
    )
    # In the list of publications it is seen by all who look there: signed metadata, and the trail for people.
    publish(connection, "canary", version, now, f"{100 * settings.share:g} % of the devices; {note}")


def end(
    connection: Connection, row: Row[Any], state: str, now: float, note: str, figures: Mapping[str, Any] | None = None
) -> None:
    """state: ``promoted`` or ``rolled_back``; the former also makes the model current."""
    connection.execute(
        update(canaries)
        .where(canaries.c.id == row.id)
        .values(state=state, ended_at=now, note=note, figures=dict(figures or {}))
    )
    if state == "promoted" and current_version(connection, "model") != row.version:
        publish(connection, "model", row.version, now, note)
    publish(connection, "canary", row.version, now, f"{state.replace('_', ' ')}: {note}")


def running(connection: Connection) -> Row[Any] | None:
    return connection.execute(select(canaries).where(canaries.c.state == "running")).first()


def require_running(connection: Connection) -> Row[Any]:
    """Raises Refusal (409)."""
    row = running(connection)
    if row is None:
        raise Refusal(409, "no_canary", "no model is with a canary; begin with: idiolect models canary VERSION")
    return row


def read_settings(row: Row[Any]) -> CanarySettings:
    return CanarySettings.model_validate(row.settings)


def model_for(connection: Connection, device_id: str, installed: str, now: float) -> Row[Any]:
    """The model that this device is to have; the current one, or the canary's. That it came is written down where it is
    watched: who enrolled after the canary began gets what its arm gets, and decides nothing, so that nobody makes up
    devices that do. installed: the version that it has."""
    current = find_model(connection, current_version(connection, "model"))
    row = running(connection)
    if row is None or row.base != current.version:
        return current
    arm = arm_of(device_id, row.version, read_settings(row).share)
    if arm == "rest":
        return current
    enrolled_at = connection.execute(select(devices.c.enrolled_at).where(devices.c.id == device_id)).scalar_one()
    if enrolled_at > row.started_at:
        return find_model(connection, row.version) if arm == "canary" else current
    own = and_(canary_devices.c.canary_id == row.id, canary_devices.c.device_id == device_id)
    seen = {"last_seen": now, "installed": arm == "control" or installed == row.version}
    if not connection.execute(update(canary_devices).where(own).values(seen)).rowcount:
        first = {"canary_id": row.id, "device_id": device_id, "arm": arm, "first_seen": now}
        connection.execute(insert(canary_devices).values(first | seen))
    return find_model(connection, row.version) if arm == "canary" else current


def evidence(connection: Connection, row: Row[Any], now: float) -> Evidence:
    """Of the devices first seen so long ago that they must have come back with the model installed. A device failed
    that has not, or was not heard of since."""
    since = now - read_settings(row).patience
    failed = or_(canary_devices.c.installed.is_(False), canary_devices.c.last_seen < since)
    query = (
        select(canary_devices.c.arm, func.count(), func.sum(case((failed, 1), else_=0)))
        .where(canary_devices.c.canary_id == row.id, canary_devices.c.first_seen <= since)
        .group_by(canary_devices.c.arm)
    )
    found = {str(arm): Watched(int(devices), int(lost)) for arm, devices, lost in connection.execute(query)}
    return Evidence(found.get("canary", Watched(0, 0)), found.get("control", Watched(0, 0)))


def list_canaries(connection: Connection, limit: int = 100) -> list[Row[Any]]:
    """The newest first."""
    return list(connection.execute(select(canaries).order_by(canaries.c.id.desc()).limit(limit)))


def view(connection: Connection, row: Row[Any], now: float) -> dict[str, Any]:
    """A canary as operators see it: devices of either arm, and those of them that were watched for long enough."""
    query = (
        select(canary_devices.c.arm, func.count())
        .where(canary_devices.c.canary_id == row.id)
        .group_by(canary_devices.c.arm)
    )
    seen = {str(arm): int(devices) for arm, devices in connection.execute(query)}
    watched = evidence(connection, row, now)
    return {
        "version": row.version,
        "base": row.base,
        "state": row.state,
        "settings": row.settings,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "looks": row.looks,
        "arms": {
            arm: {"seen": seen.get(arm, 0), "watched": each.devices, "failed": each.failed}
            for arm, each in (("canary", watched.canary), ("control", watched.control))
        },
        "figures": row.figures,
        "note": row.note,
    }
