"""SQLite databases whose schema is up to date: migrating an empty one takes longer than most tests do."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from server.storage.database import Database
from tests.server.postgres import postgres_server

PLACES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@contextmanager
def placed(kind: str, folder: Path) -> Iterator[str]:
    """Where a database of a kind is: a file in the folder, or the URL of a fresh one."""
    if kind == "sqlite":
        yield str(folder / "server.db")
        return
    with postgres_server() as url:
        yield url


@cache
def template() -> Path:
    """A database of this process' own, as a server makes it."""
    folder = Path(tempfile.mkdtemp(prefix="database-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Database(f"sqlite:///{folder / 'server.db'}").close()
    return folder / "server.db"


def fresh(path: Path) -> str:
    """The URL of a database at ``path``, which is new unless there is one."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template(), path)
    return f"sqlite:///{path}"
