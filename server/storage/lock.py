"""Turns that processes of one server take: who moves rounds on, and who looks whether any can be moved.

PostgreSQL keeps them, by locks that end with the connection of a process that was killed. SQLite's file belongs to one
process, whose threads take turns among themselves."""

import threading
from contextlib import ExitStack

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from server.storage.database import Database

ADVANCING, LEADING = 0x1D13, 0x1D14
"""PostgreSQL's numbers of the two locks."""


class Lock:
    """A ``with`` block that one thread of one process is in at a time; others wait for it to end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = threading.Lock()
        self._held = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._threads)
            if not self._database.sqlite:
                connection = _connect(self._database)
                stack.callback(_end, connection)
                connection.exec_driver_sql(f"SELECT pg_advisory_lock({ADVANCING})")
            self._held = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._held.pop_all().close()  # taken out first: another thread has it as soon as the lock is free


class Lead:
    """Whether this process is the one of its server that looks after rounds; another takes over when it ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: Connection | None = None

    def mine(self) -> bool:
        """Take the lead where nobody has it. Ask again and again: it is lost with the connection that holds it."""
        if self._database.sqlite:
            return True
        try:
            if self._held is not None:
                self._held.exec_driver_sql("SELECT 1")
                return True
            connection = _connect(self._database)
            if connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({LEADING})").scalar_one():
                self._held = connection
                return True
            connection.close()
        except SQLAlchemyError:
            self.close()
            raise
        return False

    def close(self) -> None:
        """Leave the lead to another process."""
        held, self._held = self._held, None
        if held is not None:
            _end(held)


def _connect(database: Database) -> Connection:
    """A connection without a transaction: a lock may be held for as long as a round takes to aggregate."""
    return database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _end(connection: Connection) -> None:
    """Close the connection for good, which frees its locks whatever state it is in."""
    connection.invalidate()
    connection.close()
