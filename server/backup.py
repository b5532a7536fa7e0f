"""A whole server in one file: every table as JSON lines, and the blobs that they name, in a tar archive.

The archive is of no database in particular: what was saved from SQLite can be restored into PostgreSQL and back. A
restore forgets what was charged to the privacy ledger after the backup was taken; whoever restores an old one on a
server that has gone on understates epsilon by that much.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sqlalchemy import JSON, Connection, MetaData, Table, func, insert, inspect, select, text

from device_sdk.errors import StateError
from server.registry.models import blob_name
from server.storage.blobs import NAME, BlobStore
from server.storage.database import Database

__all__ = ["Backup", "restore", "save"]

FORMAT = 1
MANIFEST = "manifest.json"
ROWS = 1000
Watch = Callable[[str, int, int], None]
"""(what is being done, done, all)."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What an archive holds. revision: of the schema; rows: of every table; blobs: how many; missing: names of model
    blobs that were not there any more (their retention had ended)."""

    revision: str
    rows: dict[str, int]
    blobs: int
    missing: tuple[str, ...] = ()


def save(database: Database, blobs: BlobStore, path: Path, watch: Watch = lambda what, done, total: None) -> Backup:
    """Write everything to ``path``, whole or not at all. The server may go on meanwhile: the archive is of one moment.

    Raises StateError where a raw delta is missing or ``path`` cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="backup-", dir=path.parent) as name, database.read() as connection:
        with database.write():
            # Nobody commits now. The snapshot is taken by the first statement; raw deltas are deleted as soon as a
            # round has used them, so they are held by a second name until they are in the archive.
            tables = _tables(connection)
            held = _hold(connection, tables["reports"], blobs, Path(name))
        try:
            with tarfile.open(partial, "w") as archive:
                found = _write(connection, tables, blobs, held, Path(name), archive, watch)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise StateError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            partial.unlink(missing_ok=True)
    return found


def restore(path: Path, database: Database, blobs: BlobStore, watch: Watch = lambda what, done, total: None) -> Backup:
    """Bring an archive back into a database and a blob store that hold nothing.

    The rows come in one transaction, after the blobs that they name: a restore that is cut off leaves an empty database
    behind and can be repeated. Raises StateError where the archive is damaged or the database is not empty.
    """
    from alembic import command

    try:
        with tarfile.open(path, "r") as archive, database.write() as connection:
            manifest = _manifest(archive, path)
            _check_empty(connection, path)
            members = {member.name: member for member in archive.getmembers() if member.isfile()}
            names = [name for name in members if name.startswith("blobs/")]
            for number, name in enumerate(names):
                _restore_blob(archive, members[name], manifest["raw_sha256"], blobs, path)
                watch("blobs", number + 1, len(names))
            config = database.alembic_config(connection)
            command.downgrade(config, "base")
            command.upgrade(config, manifest["revision"])
            tables = _tables(connection)
            for number, name in enumerate(manifest["order"]):
                if name not in tables:
                    raise StateError(f"{path}: holds table {name}, which this version does not know; update the server")
                rows = _read(archive, members, name, path)
                if len(rows) != manifest["rows"][name]:
                    raise StateError(f"{path}: {name}: found {len(rows)} rows, expected {manifest['rows'][name]}")
                _insert(connection, tables[name], rows)
                watch("tables", number + 1, len(manifest["order"]))
            command.upgrade(config, "head")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise StateError(f"{path}: cannot be read as a backup ({error})") from error
    return Backup(manifest["revision"], dict(manifest["rows"]), len(names), tuple(manifest["missing"]))


def _tables(connection: Connection) -> dict[str, Table]:
    """Every table as it is in the database, each after those that it points to."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: name != "alembic_version")
    for table in found.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)  # what is absent stays absent
    return {table.name: table for table in found.sorted_tables}


def _hold(connection: Connection, reports: Table, blobs: BlobStore, folder: Path) -> dict[str, Path]:
    """Blob -> a second name of its file, for the raw deltas that rounds still need."""
    held = {}
    wanted = connection.execute(select(reports.c.blob).where(reports.c.blob.is_not(None))).scalars()
    for number, name in enumerate(wanted):
        held[name] = folder / str(number)
        blobs.hold(name, held[name])
    return held


def _write(
    connection: Connection,
    tables: dict[str, Table],
    blobs: BlobStore,
    held: dict[str, Path],
    folder: Path,
    archive: tarfile.TarFile,
    watch: Watch,
) -> Backup:
    rows = {}
    for number, (name, table) in enumerate(tables.items()):
        with tempfile.TemporaryFile() as file:
            rows[name] = 0
            for row in connection.execution_options(yield_per=ROWS).execute(select(table)).mappings():
                file.write(json.dumps({key: _plain(value) for key, value in row.items()}).encode() + b"\n")
                rows[name] += 1
            member = tarfile.TarInfo(f"tables/{name}.jsonl")
            member.size = file.tell()
            file.seek(0)
            archive.addfile(member, file)
        watch("tables", number + 1, len(tables))
    models = tables["models"]
    digests = connection.execute(select(models.c.sha256, models.c.optimizer_sha256))
    wanted = sorted({blob_name(digest) for pair in digests for digest in pair if digest is not None})
    missing = tuple(name for name in wanted if not blobs.has(name))
    names = [*held, *(name for name in wanted if name not in missing)]
    for number, name in enumerate(names):
        place = held.get(name)
        if place is None:
            place = folder / "model"
            place.unlink(missing_ok=True)
            blobs.hold(name, place)
        archive.add(place, f"blobs/{name}", recursive=False)
        watch("blobs", number + 1, len(names))
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    manifest = {
        "format": FORMAT,
        "revision": revision,
        "order": list(tables),
        "rows": rows,
        "missing": list(missing),
        "raw_sha256": {name: _digest(place) for name, place in held.items()},
    }
    content = json.dumps(manifest).encode()
    member = tarfile.TarInfo(MANIFEST)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
    return Backup(revision, rows, len(names), missing)


def _manifest(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    try:
        file = archive.extractfile(MANIFEST)
        manifest: dict[str, Any] = json.loads(file.read() if file is not None else b"")
        if manifest["format"] != FORMAT:
            raise StateError(f"{path}: found format {manifest['format']}, expected {FORMAT}; update the server")
        if not manifest["order"] or set(manifest["order"]) != set(manifest["rows"]):
            raise ValueError("its tables do not agree")
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: is no whole backup ({error}); it may have been cut off") from error
    return manifest


def _check_empty(connection: Connection, path: Path) -> None:
    inspector = inspect(connection)
    for name in inspector.get_table_names():
        if name == "alembic_version":
            continue
        count = connection.execute(select(func.count()).select_from(Table(name, MetaData()))).scalar_one()
        if count:
            raise StateError(
                f"{path}: the database holds {count} rows of {name}; a backup is restored into an empty one only"
            )


def _restore_blob(
    archive: tarfile.TarFile, member: tarfile.TarInfo, raw: dict[str, str], blobs: BlobStore, path: Path
) -> None:
    name = member.name.removeprefix("blobs/")
    if not NAME.match(name):
        raise StateError(f"{path}: {member.name}: is no name of a blob")
    file = archive.extractfile(member)
    content = file.read() if file is not None else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != raw.get(name, PurePosixPath(name).stem):  # a model is named by its digest
        raise StateError(f"{path}: {member.name}: its content has SHA-256 {digest}; the backup is damaged")
    blobs.put(name, content)


def _read(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, path: Path) -> list[dict[str, Any]]:
    member = members.get(f"tables/{name}.jsonl")
    file = archive.extractfile(member) if member is not None else None
    if file is None:
        raise StateError(f"{path}: tables/{name}.jsonl is missing")
    try:
        return [{key: _value(value) for key, value in json.loads(line).items()} for line in file]
    except (ValueError, AttributeError) as error:
        raise StateError(f"{path}: tables/{name}.jsonl: cannot be read ({error})") from error


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Rows that point to rows of the same table come after those."""
    own = [(key.parent.name, key.column.name) for key in table.foreign_keys if key.column.table.name == table.name]
    for batch in _in_order(rows, own):
        for start in range(0, len(batch), ROWS):
            connection.execute(insert(table), batch[start : start + ROWS])
    if connection.dialect.name == "postgresql":
        for column in table.primary_key.columns:
            sequence = connection.execute(
                text("SELECT pg_get_serial_sequence(:name, :column)"), {"name": table.name, "column": column.name}
            ).scalar()
            if sequence is not None and rows:
                last = max(row[column.name] for row in rows)
                connection.execute(text("SELECT setval(:sequence, :last)"), {"sequence": sequence, "last": last})


def _in_order(rows: list[dict[str, Any]], own: list[tuple[str, str]]) -> Iterator[list[dict[str, Any]]]:
    if not own:
        yield rows
        return
    there: dict[str, set[Any]] = {target: {None} for _, target in own}
    left = rows
    while left:
        ready = [row for row in left if all(row[name] in there[target] for name, target in own)]
        if not ready:
            raise StateError("backup: rows point to rows that are not in it; it is damaged")
        yield ready
        for target, known in there.items():
            known |= {row[target] for row in ready}
        identities = {id(row) for row in ready}
        left = [row for row in left if id(row) not in identities]


def _plain(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes | memoryview) else {"json": value}


def _value(value: dict[str, Any]) -> Any:
    return b64decode(value["base64"]) if "base64" in value else value["json"]


def _digest(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
