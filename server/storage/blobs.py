"""Weights and raw deltas as files: written whole or not at all, and on disk before their name is used."""

import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, Protocol
from uuid import uuid4

from device_sdk.errors import StateError
from device_sdk.state.store import take_lock

log = logging.getLogger("idiolect.server")

NAME = re.compile(r"^[a-z]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")
TEMPORARY = ".partial-"
DIGEST = re.compile(r"/([0-9a-f]{64})\.[a-z]+$")
CHECKED_SECONDS = 10.0
"""How long a file that was read whole, and has not changed since by what its folder says, is served unread."""


class BlobStore(Protocol):
    """Immutable bytes by name, such as ``models/<sha256>.safetensors``. Names are checked (StateError), and so is what
    is read of a blob that is named by its digest: StateError where other bytes lie there."""

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


def check_name(name: str) -> str:
    """The name. Raises StateError for one that no blob has."""
    if not NAME.match(name):
        raise StateError(f"blob name {name!r}: expected folder/name made of letters, digits, '.', '_' and '-'")
    return name


def check_content(name: str, content: bytes) -> bytes:
    """The content of a blob. StateError: the name says by a digest that it is to be another."""
    _check_digest(name, sha256(content).hexdigest())
    return content


def _check_digest(name: str, found: str) -> None:
    named = DIGEST.search(name)
    if named is not None and named[1] != found:
        raise StateError(f"{name}: its content has SHA-256 {found}, so it is damaged; restore it from a backup")


class FolderBlobs:
    """A folder of immutable files: a :class:`BlobStore`."""

    def __init__(self, folder: Path, *, tidy: bool = True, create: bool = True) -> None:
        """tidy: remove what a killed process left half-written; False beside a process that may be writing. create:
        make the folder; False raises StateError where it is missing."""
        self.folder = folder
        self._checked: dict[str, tuple[tuple[int, ...], float]] = {}
        if not create and not folder.is_dir():
            raise StateError(f"{folder}: there is no such folder of blobs; name the one that the server uses")
        _make(folder)
        if tidy:
            for path in (folder, *folder.rglob("*")):
                keep_private(path)
            for leftover in folder.rglob(f"{TEMPORARY}*"):
                leftover.unlink(missing_ok=True)

    def put(self, name: str, content: bytes) -> None:
        path = self.path(name)
        for parent in (path.parent.parent, path.parent):
            _make(parent)
        temporary = path.parent / f"{TEMPORARY}{uuid4().hex}"
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
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
        with self._reading(name) as path:
            content = path.read_bytes()
        return check_content(name, content)

    def path(self, name: str) -> Path:
        return self.folder / check_name(name)

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self, prefix: str) -> Iterator[str]:
        for path in sorted((self.folder / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith(TEMPORARY):
                yield path.relative_to(self.folder).as_posix()

    def file(self, name: str) -> Path:
        """Read through before, and again when it has changed or some seconds have passed: ranges of it cost little."""
        if DIGEST.search(name) is None:
            return self.path(name)
        with self._reading(name) as path:
            state = path.stat()
            now, known = (state.st_ino, state.st_size, state.st_mtime_ns), self._checked.get(name)
            if known is None or known[0] != now or time.monotonic() >= known[1]:
                self._checked.pop(name, None)
                _check_digest(name, _digest(path))
                self._checked[name] = now, time.monotonic() + CHECKED_SECONDS
        return path

    def hold(self, name: str, place: Path) -> None:
        with self._reading(name) as path:
            try:
                os.link(path, place)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(path, place)
            _check_digest(name, _digest(place))

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self.path(name)
        try:
            yield path
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror}); restore it from a backup") from error


def lock_folder(folder: Path) -> IO[bytes]:
    """Take a folder for one process at a time, until what is returned is closed; the system frees it when the process
    ends, however it ends. Raises StateError where another process has it."""
    _make(folder)
    lock = take_lock(folder / ".lock", "another server process uses it; stop that one first")
    keep_private(folder / ".lock")
    return lock


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _make(folder: Path) -> None:
    """The folder, closed to others where it is made here."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_private(path: Path) -> None:
    """Take from others what they may do with a file or a folder of ours; one that is not there is no error."""
    if os.name == "nt":
        return
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
    except FileNotFoundError:
        pass
    except OSError:
        log.warning("a file of the server's state is open to others, and not ours to close")
