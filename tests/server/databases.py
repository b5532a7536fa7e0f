"""SQLite databases whose schema is up to date: migrating an empty one takes longer than most tests do."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from server.storage.database import Database

__all__ = ["fresh", "template"]


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
