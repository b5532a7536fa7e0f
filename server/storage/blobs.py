"""Weights and raw deltas as files: written whole or not at all, and on disk before their name is used."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from device_sdk.errors import StateError

__all__ = ["BlobStore", "FolderBlobs", "FolderLock", "check_name", "open_blobs"]

NAME = re.compile(r"^[a-z]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")
TEMPORARY = ".partial-"


class BlobStore(Protocol):
    """Immutable bytes by name, such as ``models/<sha256>.safetensors``. Names are checked (StateError)."""

    def put(self, name: str, content: bytes) -> None:
        """Write ``content`` and return when it would survive a loss of power."""

    def get(self, name: str) -> bytes:
        """Raises StateError where it is not there or cannot be read."""

    def has(self, name: str) -> bool: ...

    def delete(self, name: str) -> None:
        """A name that is not there is no error."""

    def names(self, prefix: str) -> Iterator[str]:
        """Names under a top folder, sorted."""

    def file(self, name: str) -> Path:
        """A file of the blob's content, to be read and not changed. Raises StateError where it cannot be had."""

    def hold(self, name: str, place: Path) -> None:
        """Make ``place`` a file of the blob's content, which stays when the blob is deleted. Raises StateError."""


def open_blobs(place: Path | str, *, tidy: bool = True) -> BlobStore:
    """A folder, or an object store by its URL (``s3://bucket/prefix``). tidy: see :class:`FolderBlobs`.

    Raises StateError or MissingExtraError where it cannot be opened.
    """
    if "://" in str(place):
        from server.storage.objects import ObjectBlobs

        return ObjectBlobs(str(place))
    return FolderBlobs(Path(place), tidy=tidy)


def check_name(name: str) -> str:
    """The name. Raises StateError for one that no blob has."""
    if not NAME.match(name):
        raise StateError(f"blob name {name!r}: expected folder/name made of letters, digits, '.', '_' and '-'")
    return name


class FolderBlobs:
    """A folder of immutable files: a :class:`BlobStore`."""

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
        return self.folder / check_name(name)

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self, prefix: str) -> Iterator[str]:
        """Names under a top folder, sorted."""
        for path in sorted((self.folder / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith(TEMPORARY):
                yield path.relative_to(self.folder).as_posix()

    def file(self, name: str) -> Path:
        return self.path(name)

    def hold(self, name: str, place: Path) -> None:
        try:
            try:
                os.link(self.path(name), place)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(self.path(name), place)
        except OSError as error:
            raise StateError(f"{self.path(name)}: cannot be read ({error.strerror})") from error


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
