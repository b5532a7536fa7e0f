"""A real PostgreSQL for tests, from the wheel that carries one."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["postgres_server"]


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database, whose server runs until the block ends. Skips without the wheel."""
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL here; install pgserver")
    pytest.importorskip("psycopg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Run by root, it works as a user of its own, who must get to its folder: pytest's are closed to others.
        folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        folder.chmod(0o755)
        server = pgserver.get_server(folder / "data")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
