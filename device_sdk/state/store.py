"""The state file: tables of encrypted values, written in transactions, owned by one process at a time."""

import contextlib
import logging
import os
import secrets
import sqlite3
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from device_sdk.errors import StateError
from device_sdk.permit import current
from device_sdk.state.files import Cipher, SealedFiles
from device_sdk.state.schema import META, TABLES

SCHEMA_VERSION = 1
AFRESH = "delete the state folder to start afresh"
FILED_BYTES = 1 << 14
"""A value of at least this size lies in a file of its own, in tables declared so."""

_CHECK = b"idiolect"
_SALT_BYTES = 32
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)

log = logging.getLogger(__name__)


class Store:
    """Owns the state folder: its lock, its SQLite file (WAL), its sealed files and the cipher. Threads may share it.
    Values are bytes under (table, name), declared in :mod:`device_sdk.state.schema`. Outside ``transaction()`` every
    write commits on its own; inside, all commit together or none does. A process killed at any point leaves the last
    committed state; an erasure that was cut short is finished by the next opening. guard: the reentrant lock of every
    access. Whoever mirrors values in memory takes this lock too, and no second one, so that threads never wait for two
    locks in different orders. On a full disk a state opens and is read; what is written raises StateError until there
    is room again."""

    def __init__(self, folder: str | Path, key: bytes) -> None:
        """Opens or creates the state in ``folder``. StateError: the folder is in use by another process (or twice by
        this one), was written with another key or with another schema version, or is damaged."""
        self.folder = checked_folder(folder)
        self._key = bytes(key) if isinstance(key, bytes | bytearray) else key
        self.guard = threading.RLock()
        self._depth = 0
        self._files = SealedFiles(self.folder)
        self._cipher: Cipher
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            in_use = "the state folder is in use, expected one owner; close the other device or process first"
            self._lock = take_lock(self.folder / "lock", in_use)
        except OSError as error:
            raise StateError(f"{self.folder}: the state folder cannot be used: {error}") from error
        try:
            try:
                self._connect()
            except StateError as error:
                if not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
                self._connect(memory_index=True)
                log.warning("%s: no room to write: it is read, and writing is tried again each time", self.folder)
        except BaseException as error:
            self._lock.close()
            if isinstance(error, sqlite3.Error):
                raise StateError(f"{self.folder / 'state.sqlite'}: not a usable state file: {error}") from error
            raise

    def get(self, table: str, name: str) -> bytes | None:
        with self.guard:
            rows = self._rows(f"SELECT value, file FROM {_known(table)} WHERE name = ?", name)
            if not rows:
                return None
            (value, file), place = rows[0], f"{table}/{name}"
            if file is None:
                return self._cipher.open(_sealed(value, place), place)
            return self._cipher.open(self._files.read(file, place), f"{place}/{file}")

    def put(self, table: str, name: str, value: bytes) -> None:
        """StateError: unknown table, or the disk is full; what was there before stays."""
        place = f"{table}/{name}"
        with self.transaction():
            self._replace_file(table, name)
            file, sealed = None, b""
            if TABLES[table].filed and len(value) >= FILED_BYTES:
                file = secrets.token_hex(16) + ".sealed"
                self._files.write(file, self._cipher.seal(value, f"{place}/{file}"))
            else:
                sealed = self._cipher.seal(value, place)
            insert = f"INSERT INTO {table} (name, value, file) VALUES (?, ?, ?) "
            update = "ON CONFLICT (name) DO UPDATE SET value = excluded.value, file = excluded.file"
            self._run(insert + update, name, sealed, file)

    def delete(self, table: str, *names: str) -> None:
        """Those that are not there are left out."""
        with self.transaction():
            for name in names:
                self._replace_file(table, name)
                self._run(f"DELETE FROM {table} WHERE name = ?", name)

    def names(self, table: str) -> list[str]:
        """Names in the order they were first put."""
        with self.guard:
            return [row[0] for row in self._rows(f"SELECT name FROM {_known(table)} ORDER BY id")]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside commits together, or not at all. Nested use joins the outer transaction.
        CheckInError: this thread writes for a check-in that was ended (:mod:`device_sdk.permit`)."""
        with self.guard:
            committing = False
            if self._depth == 0:
                if (permit := current()) is not None:
                    permit.check()
                self._run("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self._files.before_commit()
                    committing = True
                    self._run("COMMIT")
                    self._files.committed()
            except BaseException:
                # A full disk makes SQLite roll back by itself; a second time would hide what went wrong.
                if self._depth == 1 and self._connection.in_transaction:
                    self._run("ROLLBACK")
                if self._depth == 1:
                    self._files.undecided() if committing else self._files.rolled_back()
                raise
            finally:
                self._depth -= 1

    def erase(self, keep: Collection[tuple[str, str]] = ()) -> None:
        """Really erases everything: deleted pages are overwritten, the file is rebuilt, the write-ahead log is emptied,
        sealed files are removed and the salt is replaced, so that not even a copy of old pages can be decrypted with
        the app's key. Killed half way, it has erased nothing, or the next opening finishes it. keep: values, by table
        and name, that stay, under the new salt."""
        with self.guard:
            before = self._cipher
            try:
                with self.transaction():
                    kept = {place: value for place in keep if (value := self.get(*place)) is not None}
                    for table in TABLES:
                        for file in self._filed(table):
                            self._files.replace(file, zeroed=TABLES[table].zeroed)
                        self._run(f"DELETE FROM {table}")
                    self._run("DELETE FROM meta")
                    self._run("DELETE FROM sqlite_sequence")
                    self._write_meta()
                    self._run("INSERT INTO meta (name, value) VALUES ('erasing', x'')")
                    for place, value in kept.items():
                        self.put(*place, value)
            except BaseException:
                self._cipher = before
                raise
            self._finish_erasing()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._lock.closed

    def settle(self) -> None:
        """Brings what was committed from the log into the file, and empties the log: what was deleted is then in
        neither. Inside a transaction, or where the disk fails, that is left for the next time."""
        with self.guard, contextlib.suppress(StateError):
            if self._depth == 0:
                self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Closes file and lock. Closing twice is harmless; anything else afterwards is a StateError."""
        with self.guard:
            self._connection.close()
            self._lock.close()

    def _connect(self, *, memory_index: bool = False) -> None:
        """memory_index: keep the index of the log in memory, so that opening and reading write nothing at all."""
        self._connection = sqlite3.connect(self.folder / "state.sqlite", isolation_level=None, check_same_thread=False)
        try:
            if memory_index:
                self._run("PRAGMA locking_mode = EXCLUSIVE")
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON", "temp_store = MEMORY"):
            self._run(f"PRAGMA {pragma}")
        version = self._rows("PRAGMA user_version")[0][0]
        if version == 0:
            if left := self._files.names():
                raise StateError(
                    f"{self.folder / 'state.sqlite'}: found no state in it, and {len(left)} sealed files of one beside "
                    f"it; put the file back from a copy, or {AFRESH}"
                )
            with self.transaction():
                self._run("CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
                for table in TABLES:
                    self._run(
                        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, "
                        "name TEXT UNIQUE NOT NULL, value BLOB NOT NULL, file TEXT)"
                    )
                self._write_meta()
                self._run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version == SCHEMA_VERSION:
            self._read_meta()
        else:
            raise StateError(
                f"{self.folder / 'state.sqlite'}: schema version: found {version}, expected {SCHEMA_VERSION}; "
                f"use the idiolect that wrote it, or {AFRESH}"
            )
        self._files.tidy(file for table in TABLES for file in self._filed(table))

    def _read_meta(self) -> None:
        meta = dict(self._rows("SELECT name, value FROM meta"))
        if not {"salt", "check"} <= set(meta) <= set(META):
            raise StateError(f"{self.folder}: state.sqlite: table meta: found {sorted(meta)}, expected check, salt")
        self._cipher = Cipher(self._key, _sealed(meta["salt"], "meta/salt"))
        try:
            self._cipher.open(_sealed(meta["check"], "meta/check"), "meta/check")
        except StateError as error:
            why = "found another key than it was made with, by which nothing in it can be decrypted; give that one"
            raise StateError(f"{self.folder}: {why}") from error
        if "erasing" in meta:
            self._finish_erasing()

    def _finish_erasing(self) -> None:
        """Nothing of before is left in the file or its log; the mark goes last, so that this is never half done."""
        self._run("VACUUM")
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        self._run("DELETE FROM meta WHERE name = 'erasing'")

    def _filed(self, table: str) -> list[Any]:
        return [row[0] for row in self._rows(f"SELECT file FROM {table} WHERE file IS NOT NULL")]

    def _replace_file(self, table: str, name: str) -> None:
        for row in self._rows(f"SELECT file FROM {_known(table)} WHERE name = ?", name):
            self._files.replace(row[0], zeroed=TABLES[table].zeroed)

    def _write_meta(self) -> None:
        salt = os.urandom(_SALT_BYTES)
        self._cipher = Cipher(self._key, salt)
        self._run("INSERT INTO meta (name, value) VALUES ('salt', ?)", salt)
        self._run("INSERT INTO meta (name, value) VALUES ('check', ?)", self._cipher.seal(_CHECK, "meta/check"))

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # damaged text may be in SQLite's own message
            hint = "; make room on the disk" if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM else ""
            raise StateError(f"{self.folder / 'state.sqlite'}: {error}{hint}") from error

    def _rows(self, statement: str, *values: object) -> list[Any]:
        """What a query finds. SQLite reads as rows are fetched, so damage may show only then."""
        cursor = self._run(statement, *values)
        try:
            return cursor.fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StateError(f"{self.folder / 'state.sqlite'}: {error}") from error


def checked_folder(folder: str | Path) -> Path:
    """The folder of a state. StateError: no path."""
    if not isinstance(folder, str | os.PathLike):
        raise StateError(f"state_folder: found {type(folder).__name__}, expected a path")
    return Path(folder)


def _sealed(value: object, place: str) -> bytes:
    if not isinstance(value, bytes):
        raise StateError(f"{place}: found {type(value).__name__}, expected bytes; {AFRESH}")
    return value


def _known(table: str) -> str:
    if table not in TABLES:
        raise StateError(f"table: found {table!r}, expected one of {', '.join(TABLES)}")
    return table


def take_lock(path: Path, in_use: str) -> IO[bytes]:
    """The file, held by this process until it is closed. StateError: that its folder is ``in_use``."""
    handle = path.open("a+b")
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StateError(f"{path.parent}: {in_use}") from error
    return handle
