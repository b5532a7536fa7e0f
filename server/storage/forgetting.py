"""What is taken out of the database must not lie on in its files: who takes it out says so, and the files are cleaned.

A transaction that clears something marks the tables that held it (:func:`forget`); once it is committed, whoever moves
rounds on has the database clean up (:meth:`server.storage.database.Database.clean`), again and again until it worked.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection

__all__ = ["MARKS", "SENSITIVE", "forget", "keep_private", "overwrite"]

log = logging.getLogger("idiolect.server")

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


def keep_private(path: Path) -> None:
    """Take from others what they may do with a file or a folder of ours; one that is not there is no error."""
    if os.name == "nt":
        return
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
    except FileNotFoundError:
        return
    except OSError:
        log.warning("a file of the server's state is open to others, and not ours to close")
