"""Which version is current: the last line of an append-only list, so every publication and rollback stays visible."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from device_sdk.errors import StateError
from server.storage.schema import publications

__all__ = ["current_version", "history", "publish"]


def publish(connection: Connection, kind: str, version: str | int, now: float, note: str) -> None:
    """Make a version current. kind: ``model`` or ``marginals``."""
    connection.execute(insert(publications).values(kind=kind, version=str(version), at=now, note=note))


def current_version(connection: Connection, kind: str) -> str:
    """Raises StateError when nothing was ever published: the server was started without a bundle."""
    version = connection.execute(_NEWEST, {"wanted": kind}).scalar()
    if version is None:
        raise StateError(f"registry: no {kind} published; start the server with a bundle")
    return str(version)


_NEWEST = (
    select(publications.c.version)
    .where(publications.c.kind == bindparam("wanted"))
    .order_by(publications.c.id.desc())
    .limit(1)
)


def history(connection: Connection, kind: str) -> list[dict[str, Any]]:
    """Every publication of a kind, the newest first."""
    query = select(publications).where(publications.c.kind == kind).order_by(publications.c.id.desc())
    return [{"version": row.version, "at": row.at, "note": row.note} for row in connection.execute(query)]
