"""A real PostgreSQL for tests, from the wheel that carries one."""

import atexit
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def postgres_server(*, own: bool = False) -> Iterator[str]:
    """The URL of an empty database, which is gone when the block ends. Skips without the wheel. Its server is this
    process' until that ends; own: one of its own, whose settings may be changed."""
    pytest.importorskip("pgserver", reason="no PostgreSQL here; install pgserver")
    pytest.importorskip("psycopg")
    if own:
        server, folder = _server()
        try:
            yield str(server.get_uri())
        finally:
            _end(server, folder)
        return
    url = fresh_database(_shared())
    try:
        yield url
    finally:
        _execute(_shared(), f'DROP DATABASE "{url.partition("?")[0].rpartition("/")[2]}" WITH (FORCE)')


def fresh_database(url: str) -> str:
    """The URL of a new database of the same PostgreSQL server."""
    name = f"fresh_{secrets.token_hex(8)}"
    _execute(url, f'CREATE DATABASE "{name}"')
    place, mark, more = url.partition("?")
    return f"{place.rpartition('/')[0]}/{name}{mark}{more}"


def _execute(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


@cache
def _shared() -> str:
    server, folder = _server()
    atexit.register(_end, server, folder)
    return str(server.get_uri())


def _server() -> tuple[Any, Path]:
    import pgserver

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Run by root, it works as a user of its own, who must get to its folder: pytest's are closed to others.
        folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        folder.chmod(0o755)
        return pgserver.get_server(folder / "data"), folder


def _end(server: Any, folder: Path) -> None:
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
