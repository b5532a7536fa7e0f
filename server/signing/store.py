"""Signed metadata in the database, and what of the registry it is about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from device_sdk.wire.rollout import millionths
from server.registry.marginals import find_marginals
from server.registry.models import current_version, find_model, list_models
from server.rounds.rollout.store import read_settings, running
from server.signing.roots import Online
from server.storage.schema import publications, update_metadata

LISTED = 1000
"""Older published models than so many are named no more: no device is sent back that far."""
KEPT = 8
"""Versions of a role that stay, for devices that have seen the timestamp before the newest."""


@dataclass(frozen=True, slots=True)
class Published:
    """One file that devices may install. path: its target's name; custom: what the signature says of it besides."""

    path: str
    length: int
    sha256: str
    custom: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """role, version, body: the metadata. key_id: who signed it. publication: the newest that it knows of."""

    role: str
    version: int
    body: bytes
    key_id: str
    expires_at: float
    publication: int


def newest(connection: Connection, role: Online) -> Row | None:
    table = update_metadata
    query = select(table).where(table.c.role == role).order_by(table.c.version.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else Row(*row)


def find(connection: Connection, role: str, version: int) -> bytes | None:
    query = select(update_metadata.c.body).where(update_metadata.c.role == role, update_metadata.c.version == version)
    found: bytes | None = connection.execute(query).scalar()
    return found


def keep(connection: Connection, row: Row) -> None:
    """Adds a version and drops those that no device can ask for any more."""
    table = update_metadata
    connection.execute(insert(table).values(asdict(row)))
    of_role = table.c.role == row.role
    oldest = connection.execute(
        select(table.c.version).where(of_role).order_by(table.c.version.desc()).limit(1).offset(KEPT)
    ).scalar()
    if oldest is not None:
        connection.execute(delete(table).where(of_role, table.c.version <= oldest))


def last_publication(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(publications.c.id), 0))).scalar_one())


def published_files(connection: Connection) -> list[Published]:
    """Every published model with its teacher, and the marginals; which of them is current is part of what is signed, so
    that nobody can send a device back to a version that was good once. So is the share of the devices that gets another
    model first: a device knows by itself whether it belongs to it (:mod:`device_sdk.wire.rollout`)."""
    current = find_model(connection, current_version(connection, "model"))
    latest = func.max(publications.c.id)
    of_models = select(publications.c.version).where(publications.c.kind == "model")
    newest_first = of_models.group_by(publications.c.version).order_by(latest.desc())
    recent = connection.execute(newest_first.limit(LISTED)).scalars()
    models = {str(row.version): row for row in list_models(connection)}
    wanted = {version: models[version] for version in recent if version in models}
    tried = running(connection)
    if tried is not None:
        wanted[tried.version] = models[tried.version]
    wanted |= {row.teacher: models[row.teacher] for row in list(wanted.values()) if row.teacher is not None}
    files = []
    for version, row in sorted(wanted.items()):
        custom = {"current": True, "teacher": row.teacher} if version == current.version else {}
        if tried is not None and version == tried.version and tried.base == current.version:
            custom = {"rollout": millionths(read_settings(tried).share), "teacher": row.teacher}
        files.append(Published(f"models/{version}.safetensors", row.size, row.sha256, custom))
    marginals = find_marginals(connection, int(current_version(connection, "marginals")))
    described = {"current": True, "words_digest": marginals.words_digest}
    length = len(marginals.probabilities)
    files.append(Published(f"marginals/{marginals.version}.float64", length, marginals.sha256, described))
    return files
