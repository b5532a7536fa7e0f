"""Files that commands write: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["write_whole", "written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[IO[str]]:
    """A text file beside ``path`` that takes its place at the end; after an error ``path`` is as it was."""
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe: nothing to replace
        with path.open("w", encoding="utf-8") as out:
            yield out
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            yield out
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    with written_whole(path) as out:
        out.write(text)
