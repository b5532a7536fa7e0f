"""The state file: tables of encrypted values, written in transactions, owned by one process at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from device_sdk.errors import StateError
from device_sdk.state.cipher import Cipher

__all__ = ["SCHEMA_VERSION", "TABLES", "Store"]

SCHEMA_VERSION = 1

TABLES: dict[str, str] = {
    "counts": "unigram counts: the n-best cache of this device, and what of it was not yet reported",
    "marginals": "the global distribution last pulled from the server",
    "weights": "the published base where it is newer than the bundle, the local weights and the teacher's",
    "outbox": "exact bytes of reports until the server acknowledges them",
    "identity": "the device's signing key and id at a server",
    "settings": "versions, counters and the ledger of what was sent",
}
"""Every table that holds values, and all that it may hold. No audio, feature or transcript has a place here."""

_CHECK = b"idiolect"
_SALT_BYTES = 32


class Store:
    """Owns the state folder: its lock, its SQLite file (WAL) and the cipher. Safe to share between threads.

    Values are bytes under (table, name). Outside ``transaction()`` every write commits on its own; inside, all commit
    together or none does. A process killed at any point leaves the last committed state.

    guard: the reentrant lock of every access. Whoever mirrors values in memory takes this lock too, and no second one,
    so that threads never wait for two locks in different orders.
    """

    def __init__(self, folder: str | Path, key: bytes) -> None:
        """Opens or creates the state in ``folder``.

        StateError: the folder is in use by another process (or twice by this one), was written with another key or
        by a newer version, or is damaged.
        """
        self.folder = Path(folder)
        self._key = bytes(key) if isinstance(key, bytes | bytearray) else key
        self.guard = threading.RLock()
        self._depth = 0
        self._cipher: Cipher
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _take_lock(self.folder / "lock")
        except OSError as error:
            raise StateError(f"{self.folder}: the state folder cannot be used: {error}") from error
        try:
            self._connection = sqlite3.connect(
                self.folder / "state.sqlite", isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            self._lock.close()
            raise StateError(f"{self.folder / 'state.sqlite'}: not a usable state file: {error}") from error
        except BaseException:
            self._lock.close()
            raise

    def get(self, table: str, name: str) -> bytes | None:
        with self.guard:
            rows = self._rows(f"SELECT value FROM {_known(table)} WHERE name = ?", name)
        return self._cipher.open(_sealed(rows[0][0], f"{table}/{name}"), f"{table}/{name}") if rows else None

    def put(self, table: str, name: str, value: bytes) -> None:
        sealed = self._cipher.seal(value, f"{table}/{name}")
        with self.guard:
            self._run(
                f"INSERT INTO {_known(table)} (name, value) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                name,
                sealed,
            )

    def delete(self, table: str, name: str) -> None:
        with self.guard:
            self._run(f"DELETE FROM {_known(table)} WHERE name = ?", name)

    def names(self, table: str) -> list[str]:
        """Names in the order they were first put."""
        with self.guard:
            return [row[0] for row in self._rows(f"SELECT name FROM {_known(table)} ORDER BY id")]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside commits together, or not at all. Nested use joins the outer transaction."""
        with self.guard:
            if self._depth == 0:
                self._run("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self._run("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself; a second time would hide what went wrong.
                if self._depth == 1 and self._connection.in_transaction:
                    self._run("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def erase(self) -> None:
        """Really erases everything: deleted pages are overwritten, the file is rebuilt, the write-ahead log is emptied
        and the salt is replaced, so that not even a copy of old pages can be decrypted with the app's key."""
        with self.guard:
            before = self._cipher
            try:
                with self.transaction():
                    for table in TABLES:
                        self._run(f"DELETE FROM {table}")
                    self._run("DELETE FROM meta")
                    self._write_meta()
            except BaseException:
                self._cipher = before
                raise
            self._run("VACUUM")
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Closes file and lock. Closing twice is harmless; anything else afterwards is a StateError."""
        with self.guard:
            self._connection.close()
            self._lock.close()

    def _prepare(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON", "temp_store = MEMORY"):
            self._run(f"PRAGMA {pragma}")
        version = self._rows("PRAGMA user_version")[0][0]
        if version == 0:
            with self.transaction():
                self._run("CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
                for table in TABLES:
                    self._run(
                        f"CREATE TABLE {table} "
                        "(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, value BLOB NOT NULL)"
                    )
                self._write_meta()
                self._run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise StateError(
                f"{self.folder / 'state.sqlite'}: schema version: found {version}, expected {SCHEMA_VERSION}; "
                "update idiolect, or delete the folder to start afresh"
            )
        else:
            meta = dict(self._rows("SELECT name, value FROM meta"))
            if set(meta) != {"salt", "check"}:
                raise StateError(f"{self.folder}: state.sqlite: table meta: found {sorted(meta)}, expected check, salt")
            self._cipher = Cipher(self._key, _sealed(meta["salt"], "meta/salt"))
            self._cipher.open(_sealed(meta["check"], "meta/check"), "meta/check")

    def _write_meta(self) -> None:
        salt = os.urandom(_SALT_BYTES)
        self._cipher = Cipher(self._key, salt)
        self._run("INSERT INTO meta (name, value) VALUES ('salt', ?)", salt)
        self._run("INSERT INTO meta (name, value) VALUES ('check', ?)", self._cipher.seal(_CHECK, "meta/check"))

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # damaged text may be in SQLite's own message
            raise StateError(f"{self.folder / 'state.sqlite'}: {error}") from error

    def _rows(self, statement: str, *values: object) -> list[Any]:
        """What a query finds. SQLite reads as rows are fetched, so damage may show only then."""
        cursor = self._run(statement, *values)
        try:
            return cursor.fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StateError(f"{self.folder / 'state.sqlite'}: {error}") from error


def _sealed(value: object, place: str) -> bytes:
    if not isinstance(value, bytes):
        raise StateError(
            f"{place}: found {type(value).__name__}, expected bytes; delete the state folder to start afresh"
        )
    return value


def _known(table: str) -> str:
    if table not in TABLES:
        raise StateError(f"table: found {table!r}, expected one of {', '.join(TABLES)}")
    return table


def _take_lock(path: Path) -> IO[bytes]:
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
        raise StateError(
            f"{path.parent}: the state folder is in use, expected one owner; close the other device or process first"
        ) from error
    return handle
