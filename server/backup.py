"""A server in one file: its tables as JSON lines, and the weights that they name, in a tar archive, and a last line
with the digest of everything before it.

The archive is of no database in particular: what was saved from SQLite can be restored into PostgreSQL and back. What
devices sent to rounds under way, and keys, are not in it: whoever brings it back cannot know what the server released
meanwhile, so those rounds end with the restore, and what may have been charged since is charged
(:mod:`server.rounds.fence`)."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sqlalchemy import JSON, Connection, MetaData, Table, func, insert, inspect, select, text

from device_sdk.errors import StateError
from server.privacy.ledger import differences
from server.registry.models import blob_name, current_version, find_model, load
from server.registry.retention import lacking
from server.rounds.fence import Fence, raise_fence
from server.storage.blobs import BlobStore, FolderBlobs, check_content
from server.storage.database import Database

FORMAT = 1
MANIFEST = "manifest.json"
SEAL = b"idiolect-backup sha256 %s\n"
"""The last line."""
SENT: Mapping[str, Mapping[str, Any]] = {
    "reports": dict.fromkeys(("counts", "blob", "loss", "word_error"))
    | {"size": 0, "utterances": 0, "accepted_at": 0.0},
    "release_keys": {"key": None},
    "rounds": {"sampling_key": None},
    "aggregation_groups": {"total": None},
    "aggregation_messages": {"body": None, "size": 0, "received_at": 0.0},
}
"""What devices sent to rounds under way, and secrets of those: what stands for it in an archive."""
ROWS = 1000
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""(what is gone through, its name): the same, where somebody watches."""


def _unwatched(each: Sequence[Any], _name: str) -> Iterable[Any]:
    return each


@dataclass(frozen=True, slots=True)
class Backup:
    """What an archive holds. revision: of the schema; rows: of every table; blobs: how many; missing: names of model
    blobs that retention had removed. saved_at: seconds since the epoch. fence: what bringing it back has changed."""

    revision: str
    rows: dict[str, int]
    blobs: int
    missing: tuple[str, ...] = ()
    saved_at: float = 0.0
    fence: Fence | None = field(default=None, compare=False)


def save(
    database: Database, blobs: BlobStore, path: Path, track: Track = _unwatched, clock: Callable[[], float] = time.time
) -> Backup:
    """Write everything to ``path``, whole or not at all, and read it again. The server may go on meanwhile: the archive
    is of one moment. Raises StateError where the database holds no server's state, weights are missing or damaged, or
    ``path`` cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="backup-", dir=path.parent) as name, database.read() as connection:
        saved_at = clock()
        tables = _tables(connection)  # the snapshot is taken by the first statement
        missing = _check_whole(connection, blobs)
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            with tarfile.open(partial, "w") as archive:
                found = _write(connection, tables, blobs, missing, Path(name), archive, track, saved_at)
            with partial.open("rb+") as file:
                seal = SEAL % hashlib.file_digest(file, "sha256").hexdigest().encode()
                file.seek(0, os.SEEK_END)
                file.write(seal)
                file.flush()
                os.fsync(file.fileno())
            check(partial)
            partial.replace(path)
        except OSError as error:
            raise StateError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            partial.unlink(missing_ok=True)
    return found


def check(path: Path) -> None:
    """Raises StateError unless an archive is, to the bit, what was written."""
    try:
        with tarfile.open(path, "r:") as archive:
            manifest = _manifest(archive, path)
            members = {member.name for member in archive if member.isfile()}
            for name in sorted(members - {MANIFEST} - set(manifest["sha256"])):
                raise StateError(f"{path}: {name}: is no part of it; the backup is damaged")
            for name, expected in manifest["sha256"].items():
                if name not in members:
                    raise StateError(f"{path}: {name} is missing; the backup is damaged")
                digest = hashlib.file_digest(_member(archive, name), "sha256").hexdigest()  # type: ignore[arg-type]
                if digest != expected:
                    raise StateError(f"{path}: {name}: its content has SHA-256 {digest}; the backup is damaged")
        _check_seal(path)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise StateError(f"{path}: cannot be read as a backup ({error})") from error


def _check_seal(path: Path) -> None:
    length = len(SEAL % (b"0" * 64))
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = path.stat().st_size - length
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
        if file.read() != SEAL % digest.hexdigest().encode():
            raise StateError(f"{path}: is not what was written, or was cut off; the backup is damaged")


def verify(path: Path, track: Track = _unwatched) -> Backup:
    """Bring an archive back into a scratch place, and look at what a server would need. Raises StateError."""
    with tempfile.TemporaryDirectory(prefix="idiolect-verify-") as name:
        database, blobs = Database(f"sqlite:///{name}/server.db"), FolderBlobs(Path(name) / "blobs")
        try:
            found = restore(path, database, blobs, track)
            with database.read() as connection:
                lost = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
                if lost:
                    raise StateError(f"{path}: {lost[0][0]}: {len(lost)} rows point to rows that are not in it")
                _check_whole(connection, blobs)
                if wrong := differences(connection):
                    raise StateError(f"{path}: the ledger's totals are not those of its lines: {wrong[0]}")
                load(blobs, find_model(connection, current_version(connection, "model")).sha256)
            if not database.is_current():
                raise StateError(f"{path}: its schema cannot be brought up to date")
        finally:
            database.close()
    return found


def restore(
    path: Path,
    database: Database,
    blobs: BlobStore,
    track: Track = _unwatched,
    *,
    rounds_since: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Backup:
    """Bring an archive back into a database and a blob store that hold nothing, behind a fence
    (:func:`server.rounds.fence.raise_fence`). rounds_since: how many rounds the server may have closed after the
    backup; None assumes it.

    The rows come in one transaction, after the blobs that they name: a restore that is cut off leaves an empty database
    behind and can be repeated. Raises StateError where the archive is damaged or the database is not empty."""
    from alembic import command

    check(path)
    try:
        with tarfile.open(path, "r:") as archive, database.write() as connection:
            manifest = _manifest(archive, path)
            database.check_known(connection, [manifest["revision"]], str(path))
            _check_empty(connection, path)
            names = [each.name for each in archive if each.isfile() and each.name.startswith("blobs/models/")]
            for name in track(names, "blobs"):
                blob = name.removeprefix("blobs/")
                blobs.put(blob, check_content(blob, _member(archive, name).read()))
            config = database.alembic_config(connection)
            command.downgrade(config, "base")
            command.upgrade(config, manifest["revision"])
            tables = _tables(connection)
            for name in track(manifest["order"], "tables"):
                if name not in tables:
                    raise StateError(f"{path}: holds table {name}, which this version does not know; update the server")
                lines = (json.loads(line) for line in _member(archive, f"tables/{name}.jsonl"))
                rows = [{key: _value(value) for key, value in line.items()} for line in lines]
                if len(rows) != manifest["rows"][name]:
                    raise StateError(f"{path}: {name}: found {len(rows)} rows, expected {manifest['rows'][name]}")
                _insert(connection, tables[name], rows)
            command.upgrade(config, "head")
            fence = raise_fence(connection, manifest["saved_at"], clock(), rounds_since)
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise StateError(f"{path}: cannot be read as a backup ({error})") from error
    return replace(_told(manifest, len(names)), fence=fence)


def _tables(connection: Connection) -> dict[str, Table]:
    """Every table as it is in the database, each after those that it points to."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: name != "alembic_version")
    for table in found.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)  # what is absent stays absent
    return {table.name: table for table in found.sorted_tables}


def _check_whole(connection: Connection, blobs: BlobStore) -> tuple[str, ...]:
    """Names of the blobs that retention has removed. Raises StateError where others are missing too, or nothing was
    ever published."""
    current_version(connection, "model")
    removed, lost = lacking(connection, blobs)
    if lost:
        raise StateError(
            f"{blob_name(lost[0])}: is not among the blobs, and was not removed by retention ({len(lost)} such); name "
            "the blobs that the server uses, or publish what is there"
        )
    return tuple(blob_name(digest) for digest in removed)


def _write(
    connection: Connection,
    tables: dict[str, Table],
    blobs: BlobStore,
    missing: tuple[str, ...],
    folder: Path,
    archive: tarfile.TarFile,
    track: Track,
    saved_at: float,
) -> Backup:
    rows, digests = {}, {}
    for name, table in track(list(tables.items()), "tables"):
        with tempfile.TemporaryFile() as file:
            rows[name] = 0
            for row in connection.execution_options(yield_per=ROWS).execute(select(table)).mappings():
                kept = {**row, **SENT.get(name, {})}
                file.write(json.dumps({key: _plain(value) for key, value in kept.items()}).encode() + b"\n")
                rows[name] += 1
            member = tarfile.TarInfo(f"tables/{name}.jsonl")
            member.size = file.tell()
            file.seek(0)
            digests[member.name] = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            archive.addfile(member, file)
    models = tables["models"]
    pairs = connection.execute(select(models.c.sha256, models.c.optimizer_sha256))
    wanted = sorted({blob_name(digest) for pair in pairs for digest in pair if digest is not None})
    names = [name for name in wanted if name not in missing]
    for name in track(names, "blobs"):
        place = folder / "model"
        place.unlink(missing_ok=True)
        blobs.hold(name, place)  # by a second name, should retention remove it meanwhile; StateError: damaged
        archive.add(place, f"blobs/{name}", recursive=False)
        digests[f"blobs/{name}"] = PurePosixPath(name).stem
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    manifest = {"format": FORMAT, "revision": revision, "order": list(tables), "rows": rows}
    manifest |= {"missing": list(missing), "sha256": digests, "saved_at": saved_at}
    content = json.dumps(manifest).encode()
    member = tarfile.TarInfo(MANIFEST)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
    return _told(manifest, len(names))


def _told(manifest: dict[str, Any], blobs: int) -> Backup:
    rows, missing = dict(manifest["rows"]), tuple(manifest["missing"])
    return Backup(manifest["revision"], rows, blobs, missing, manifest["saved_at"])


def _manifest(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(_member(archive, MANIFEST).read())
        if manifest["format"] != FORMAT:
            raise StateError(f"{path}: found format {manifest['format']}, expected {FORMAT}; update the server")
        if not manifest["order"] or set(manifest["order"]) != set(manifest["rows"]):
            raise ValueError("its tables do not agree")
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: is no whole backup ({error}); it may have been cut off") from error
    return manifest


def _check_empty(connection: Connection, path: Path) -> None:
    for name in set(inspect(connection).get_table_names()) - {"alembic_version"}:
        if count := connection.execute(select(func.count()).select_from(Table(name, MetaData()))).scalar_one():
            raise StateError(
                f"{path}: the database holds {count} rows of {name}; a backup is restored into an empty one only"
            )


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """A file of an archive. Raises KeyError where there is none of that name."""
    if (file := archive.extractfile(name)) is None:
        raise KeyError(f"{name} is no file")
    return file


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
    known: dict[str, set[Any]] = {target: {None} for _, target in own}
    while rows:
        ready: list[dict[str, Any]] = []
        left: list[dict[str, Any]] = []
        for row in rows:
            (ready if all(row[name] in known[target] for name, target in own) else left).append(row)
        if not ready:
            raise StateError("backup: rows point to rows that are not in it; it is damaged")
        yield ready
        for target, there in known.items():
            there |= {row[target] for row in ready}
        rows = left


def _plain(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes | memoryview) else {"json": value}


def _value(value: dict[str, Any]) -> Any:
    return b64decode(value["base64"]) if "base64" in value else value["json"]
