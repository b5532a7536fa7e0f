"""Weights and raw deltas as files: written whole or not at all, and on disk before their name is used."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from device_sdk.errors import StateError

__all__ = ["BlobStore", "FolderLock"]

NAME = re.compile(r"^[a-z]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")
TEMPORARY = ".partial-"


class BlobStore:
    """A folder of immutable files, named by paths such as ``models/<sha256>``."""

    def __init__(self, folder: Path, *, tidy: bool = True) -> None:
        """tidy: remove what a killed process left half-written; False beside a process that may be writing."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if tidy:
            for leftover in folder.rglob(f"{TEMPORARY}*"):
                leftover.unlink(missing_ok=True)

    def put(self, name: str, content: bytes) -> None:
        """Write ``content`` and return when it would survive a loss of power."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY}{uuid4().hex}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            for parent in (path.parent, path.parent.parent):
                _sync_folder(parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StateError(f"{path}: cannot be written ({error.strerror}); is the disk full?") from error

    def get(self, name: str) -> bytes:
        path = self.path(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror}); restore it from a backup") from error

    def path(self, name: str) -> Path:
        if not NAME.match(name):
            raise StateError(f"blob name {name!r}: expected folder/name made of letters, digits, '.', '_' and '-'")
        return self.folder / name

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self, prefix: str) -> Iterator[str]:
        """Names under a top folder, sorted."""
        for path in sorted((self.folder / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith(TEMPORARY):
                yield path.relative_to(self.folder).as_posix()


class FolderLock:
    """Owns a folder for one process at a time; the system frees it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / ".lock").open("ab")
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                raise StateError(f"{folder}: another server process uses it; stop that one first") from error

    def release(self) -> None:
        self._file.close()


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
