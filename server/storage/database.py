"""One database: transactions that either happen whole or not at all, and its migrations."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from device_sdk.errors import MissingExtraError, StateError
from server.storage.blobs import keep_private

log = logging.getLogger("idiolect.server")

MIGRATIONS = Path(__file__).parent / "migrations"
WRITER, SERVER, MEMBERS = 0x1D10, 0x1D11, 0x1D12
"""PostgreSQL's numbers of the locks that writers of this schema take in turn, that one server holds, and that each of
its processes shares."""
CONNECTIONS = 48
"""Of one process, at most."""
BUSY_TIMEOUT = 30_000
"""Milliseconds for which SQLite waits for another process."""
CLEANING_WAIT = 0.25
"""Seconds for which cleaning up waits for readers, and writers for it; it is tried again."""
CLEANING_SHARE = 5.0
"""So many times as long as it took to write PostgreSQL's tables anew passes until the next time, at most
``CLEANING_PAUSE`` seconds."""
CLEANING_PAUSE = 10.0


class Database:
    """Owns the connection pool. Opening it brings the schema up to date. SQLite runs with write-ahead logging and a
    full fsync at each commit, so what was acknowledged is on disk. Whichever the database is, one transaction writes at
    a time: what it read when it began is still true when it commits."""

    def __init__(self, url: str, connections: int = CONNECTIONS, *, existing: bool = False) -> None:
        """connections: how many at most; requests that find all of them in use wait for one. existing: neither make it
        nor bring its schema up to date; StateError where it is not there or of another version."""
        try:
            parsed = make_url(url)
        except (SQLAlchemyError, ValueError) as error:
            # What was found is not told: it may hold a password.
            expected = "expected one like sqlite:///server.db or postgresql://user@host/name"
            raise StateError(f"database: cannot read its URL; {expected}") from error
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if self.sqlite and parsed.database not in (None, "", ":memory:"):
            file = Path(str(parsed.database))
            if existing and not file.is_file():
                raise StateError(f"database {file}: there is no such file; name the one that the server uses")
            file.parent.mkdir(parents=True, exist_ok=True)
            _close_to_others(file)
        try:
            self.engine = create_engine(
                parsed,
                pool_size=min(16, connections),
                max_overflow=max(0, connections - 16),
                pool_pre_ping=not self.sqlite,
                hide_parameters=True,  # errors are logged, and parameters hold what devices sent
            )
        except ModuleNotFoundError as error:
            told = f"database {parsed.drivername}: {error}; run: pip install 'idiolect-server[postgres]'"
            raise MissingExtraError(told) from error
        # SQLite has one writer: threads of this process queue here instead of polling its lock.
        self._writer = threading.Lock()
        self._claim: Connection | None = None
        self._marks = threading.Lock()
        self._forgotten: set[str] = set()
        self._marked_at: Any = None
        self._clean_after = 0.0
        self._logged = False
        if self.sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "handle_error", _drop_detail)
        try:
            if not existing:
                self.migrate()
                return
            with self.read() as connection:
                self._check_present(connection)
            if not self.is_current():
                raise StateError(
                    f"database {_shown(parsed)}: holds no server's state, or that of another version; name the one "
                    "that the server uses, with the server's own version of this program"
                )
        except SQLAlchemyError as error:
            self.engine.dispose()
            told = f"{error.__class__.__name__}: {_redacted(str(error).splitlines()[0], parsed)}"
            expected = "expected a readable and writable database"
            raise StateError(f"database {_shown(parsed)}: cannot be opened ({told}); {expected}") from error
        except BaseException:
            self.engine.dispose()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its start; committed when the block ends without an error."""
        marks = set[str]()
        with self._writer if self.sqlite else nullcontext(), self.engine.connect() as connection:
            connection = connection.execution_options(immediate=True, **{MARKS: marks})
            with connection.begin():
                if not self.sqlite:  # held until the transaction ends: servers that share the database queue here
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER})")
                yield connection
        self._mark(marks)

    def _mark(self, tables: set[str]) -> None:
        if tables:
            with self._marks:
                self._forgotten |= tables
                self._marked_at = None

    def remember_nothing(self) -> None:
        """Have the next :meth:`clean` take up what a server that was killed did not get to."""
        self._mark(set(SENSITIVE))

    def clean(self) -> bool:
        """Take what was cleared out of the database's files, as far as the database lets us; waits for nobody for long.
        SQLite's log is written back and cut off; what is deleted from its pages is written over. PostgreSQL's tables
        are written anew, and where the server's role may, its log is switched. Returns False where readers still look
        at what was: ask again."""
        with self._marks:
            tables, self._forgotten = self._forgotten, set()
        if not tables:
            return True
        done = False
        try:
            done = self._cut_log() if self.sqlite else self._write_anew(sorted(tables))
        finally:
            if not done:
                with self._marks:
                    self._forgotten |= tables
        return done

    def _cut_log(self) -> bool:
        with self._writer:
            connection = self.engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout={int(1000 * CLEANING_WAIT)}")
                busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT}")
                cursor.close()
            finally:
                connection.close()
        return not busy

    def _write_anew(self, tables: list[str]) -> bool:
        if time.monotonic() < self._clean_after:
            return False
        begun = time.monotonic()
        try:
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                if self._marked_at is None:
                    self._marked_at = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
                # Rows that somebody may still see are kept when a table is written anew.
                older = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                older += "AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL AND xact_start < %(marked)s"
                if connection.exec_driver_sql(older, {"marked": self._marked_at}).scalar_one():
                    self._clean_after = time.monotonic() + CLEANING_WAIT
                    return False
                connection.exec_driver_sql(f"SET lock_timeout = '{int(1000 * CLEANING_WAIT)}ms'")
                try:
                    for table in tables:
                        connection.exec_driver_sql(f"VACUUM (FULL) {table}")
                finally:
                    connection.exec_driver_sql("RESET lock_timeout")
                for statement in ("SELECT pg_switch_wal()", "CHECKPOINT"):
                    connection.exec_driver_sql(statement)
        except OperationalError:  # somebody held a table: nobody waits behind us for longer than that
            self._clean_after = time.monotonic() + 10 * CLEANING_WAIT
            return False
        except ProgrammingError as error:  # rights are the administrator's to give
            if not self._logged:
                self._logged = True
                told = "PostgreSQL's log keeps what was forgotten: the guide says which rights cut it"
                log.warning(told, exc_info=error)
        taken = time.monotonic() - begun
        self._clean_after = time.monotonic() + min(CLEANING_SHARE * taken, CLEANING_PAUSE)
        return True

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
        killed leaves the database to the next when the last of its members has gone too. SQLite's file is claimed with
        the folder beside it (:func:`server.storage.blobs.lock_folder`)."""
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
            raise StateError(f"database {_shown(self.engine.url)}: another server uses it; stop that first")

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

    def check_known(self, connection: Connection, revisions: Iterable[str], what: str) -> None:
        """Raises StateError where one of these revisions of the schema, ``what``'s, is newer than this server."""
        from alembic.script import ScriptDirectory

        script = ScriptDirectory.from_config(self.alembic_config(connection))
        unknown = sorted(set(revisions) - {each.revision for each in script.walk_revisions()})
        if unknown:
            raise StateError(
                f"{what}: its schema is of revision {', '.join(unknown)}, which a newer server made; this one knows "
                f"revisions up to {script.get_current_head()}. Run that server or a newer one, or restore a backup "
                "from before it"
            )

    def _check_present(self, connection: Connection) -> None:
        from alembic.migration import MigrationContext

        found = MigrationContext.configure(connection).get_current_heads()
        self.check_known(connection, found, f"database {_shown(self.engine.url)}")

    def migrate(self) -> None:
        """Bring the schema to the newest revision. Safe to call on an empty and on a current database. Raises
        StateError where a newer server has been at it."""
        from alembic import command

        with self.write() as connection:
            self._check_present(connection)
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


def _shown(url: URL) -> str:
    """A database's URL without its password."""
    return url.difference_update_query([name for name in url.query if "password" in name.lower()]).render_as_string()


def _redacted(text: str, url: URL) -> str:
    """Without what of a URL nobody is to read."""
    listed = (values for name, values in url.normalized_query.items() if "password" in name.lower())
    for secret in (*chain.from_iterable(listed), str(url.password or "")):
        text = text.replace(secret, "***") if secret else text
    return text


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event, not the driver, decides when a transaction starts
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        # What is deleted is written over: raw contributions and the keys of noise must not lie on in free pages, nor in
        # files that sorting would make.
        "secure_delete=ON",
        "temp_store=MEMORY",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _drop_detail(context: ExceptionContext) -> None:
    """PostgreSQL's second line of an error shows the row that it refuses: what a device sent is not for logs."""
    for error in (context.original_exception, context.sqlalchemy_exception):
        if error is not None and error.args:
            error.args = (str(error.args[0]).partition("\n")[0], *error.args[1:])


def _close_to_others(path: Path) -> None:
    """SQLite gives the files beside a database the rights of its own."""
    with suppress(OSError):
        path.touch(mode=0o600)
    for end in ("", "-wal", "-shm"):
        keep_private(path.with_name(path.name + end))


MARKS = "forgotten"
"""The option of a writing connection that collects the tables."""
SENSITIVE = ("reports", "release_keys", "rounds", "aggregation_groups", "aggregation_messages")
"""Tables that hold raw contributions or secrets for a while."""


def forget(connection: Connection, *tables: str) -> None:
    """Say that this transaction takes something out of these tables that is to be in no file any more."""
    marks = connection.get_execution_options().get(MARKS)
    if marks is not None:
        marks.update(tables)


def overwrite(
    connection: Connection, table: str, round_id: str, *, texts: Sequence[str] = (), binaries: Sequence[str] = ()
) -> None:
    """Write zeros over columns of a round's rows, of the same length, before they are cleared: SQLite does that in
    place, whereas rows that shrink make it move others about, whose old places are not written over."""
    if connection.dialect.name != "sqlite":
        return
    zeros = {name: f"CAST(zeroblob(length(CAST({name} AS BLOB))) AS TEXT)" for name in texts}
    zeros |= {name: f"zeroblob(length({name}))" for name in binaries}
    for name, zero in zeros.items():
        statement = f"UPDATE {table} SET {name} = {zero} WHERE round_id = ? AND {name} IS NOT NULL"
        connection.exec_driver_sql(statement, (round_id,))
