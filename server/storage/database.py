"""One database: transactions that either happen whole or not at all, and its migrations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from device_sdk.errors import MissingExtraError, StateError

__all__ = ["Database"]

MIGRATIONS = Path(__file__).parent / "migrations"
WRITER, SERVER, MEMBERS = 0x1D10, 0x1D11, 0x1D12
"""PostgreSQL's numbers of the locks that writers of this schema take in turn, that one server holds, and that each of
its processes shares."""
CONNECTIONS = 48
"""Of one process, at most."""


class Database:
    """Owns the connection pool. Opening it brings the schema up to date.

    SQLite runs with write-ahead logging and a full fsync at each commit, so what was acknowledged is on disk. Whichever
    the database is, one transaction writes at a time: what it read when it began is still true when it commits.
    """

    def __init__(self, url: str, connections: int = CONNECTIONS) -> None:
        """connections: how many at most; requests that find all of them in use wait for one."""
        try:
            parsed = make_url(url)
        except SQLAlchemyError as error:
            raise StateError(
                f"database: cannot read its URL ({error}); expected one like sqlite:///server.db or "
                "postgresql://user@host/name"
            ) from error
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if self.sqlite and parsed.database not in (None, "", ":memory:"):
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.engine = create_engine(
                parsed,
                pool_size=min(16, connections),
                max_overflow=max(0, connections - 16),
                pool_pre_ping=not self.sqlite,
                hide_parameters=True,  # errors are logged, and parameters hold what devices sent
            )
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"database {parsed.drivername}: {error}; run: pip install 'idiolect-server[postgres]'"
            ) from error
        # SQLite has one writer: threads of this process queue here instead of polling its lock.
        self._writer = threading.Lock()
        self._claim: Connection | None = None
        if self.sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        try:
            self.migrate()
        except SQLAlchemyError as error:
            self.engine.dispose()
            raise StateError(
                f"database {parsed.render_as_string()}: cannot be opened ({error.__class__.__name__}: "
                f"{str(error).splitlines()[0]}); expected a readable and writable database"
            ) from error

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its start; committed when the block ends without an error."""
        if not self.sqlite:
            with self.engine.begin() as connection:
                # Held until the transaction ends: servers that share the database queue here.
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER})")
                yield connection
            return
        with self._writer, self.engine.connect() as connection:
            connection = connection.execution_options(immediate=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one snapshot and changes nothing."""
        with self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    def claim(self, *, processes: int = 1, member: bool = False) -> None:
        """Have the database for one server until this process ends. Raises StateError where another server has it.

        processes: how many the server will have, each of which then claims its part as a ``member``. A server that was
        killed leaves the database to the next when the last of its members has gone too.
        SQLite's file is claimed with the folder beside it (:class:`server.storage.blobs.FolderLock`).
        """
        if self.sqlite or self._claim is not None:
            return
        self._claim = self.engine.connect()
        if member:
            taken = f"pg_try_advisory_lock_shared({MEMBERS})"
        else:
            taken = f"pg_try_advisory_lock({SERVER}) AND pg_try_advisory_lock({MEMBERS})"
        free = self._claim.exec_driver_sql(f"SELECT {taken}").scalar_one()
        if free and not member and processes > 1:
            self._claim.exec_driver_sql(f"SELECT pg_advisory_unlock({MEMBERS})")
        self._claim.commit()
        if not free:
            self.close()
            raise StateError(f"database {self.engine.url.render_as_string()}: another server uses it; stop that first")

    def answers(self) -> bool:
        """Whether a query gets its answer. Raises SQLAlchemyError where the database is out of reach."""
        with self.read() as connection:
            return bool(connection.exec_driver_sql("SELECT 1").scalar_one() == 1)

    def is_current(self) -> bool:
        """Whether the schema is of the newest revision that this server knows."""
        from alembic.migration import MigrationContext
        from alembic.script import ScriptDirectory

        with self.read() as connection:
            found = MigrationContext.configure(connection).get_current_heads()
            return set(found) == set(ScriptDirectory.from_config(self.alembic_config(connection)).get_heads())

    def migrate(self) -> None:
        """Bring the schema to the newest revision. Safe to call on an empty and on a current database."""
        from alembic import command

        with self.write() as connection:
            command.upgrade(self.alembic_config(connection), "head")

    def alembic_config(self, connection: Connection) -> Any:
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        return config

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
        self.engine.dispose()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event, not the driver, decides when a transaction starts
    cursor = connection.cursor()
    # What is deleted is written over: raw contributions and the keys of noise must not lie on in free pages.
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
