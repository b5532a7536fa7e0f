"""Values too large for SQLite's pages: each in a file of its own, written once, there before the row that names it.

A database writes a value twice, into its log and into its pages; a file is written once. A row names its file, so a
file belongs to the state from the commit of that row on and not before; what no row names is removed."""

import contextlib
import os
import re
from collections.abc import Iterable, Set
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from device_sdk.errors import StateError

_NAME = re.compile(r"[0-9a-f]{32}\.sealed")


class SealedFiles:
    """Owns the ``.sealed`` files of a state folder, and knows what the transaction at hand has written and replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[str] = []
        self._replaced: list[str] = []
        self._zeroed: set[str] = set()

    def write(self, name: str, sealed: bytes) -> None:
        """A new file, on the disk before this returns. StateError: it cannot be written."""
        self._written.append(name)
        path = self._folder / name
        try:
            with path.open("xb") as file:
                file.write(sealed)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StateError(f"{path}: a value cannot be written: {error}; make room on the disk") from error

    def read(self, name: object, place: str) -> bytes:
        """StateError: ``name`` is no name of such a file, or the file cannot be read."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StateError(f"{place}: found no name of a file of the state; delete the state folder to start afresh")
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise StateError(
                f"{place}: the file of its value cannot be read: {error}; restore the whole state folder, or delete "
                "it to start afresh"
            ) from error

    def replace(self, name: object, *, zeroed: bool = False) -> None:
        """Notes that no row will name the file once the transaction commits. zeroed: overwritten before removal."""
        if isinstance(name, str) and _NAME.fullmatch(name):
            self._replaced.append(name)
            self._zeroed |= {name} if zeroed else set()

    def before_commit(self) -> None:
        """Makes the names of new files durable, before a row that names them is. StateError: the disk fails."""
        if not self._written or os.name != "posix":
            return
        try:
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StateError(f"{self._folder}: the state folder cannot be written: {error}") from error

    def committed(self) -> None:
        """Removes what was replaced."""
        self._remove(self._replaced, self._zeroed)

    def rolled_back(self) -> None:
        """Removes what was written."""
        self._remove(self._written, set(self._written))

    def undecided(self) -> None:
        """After a commit that failed nobody can say what the disk holds: all files stay until the next opening."""
        self._written, self._replaced, self._zeroed = [], [], set()

    def tidy(self, named: Iterable[str]) -> None:
        """Removes every file that no row names: what a process that was killed has left."""
        left = self.names() - set(named)
        self._remove(left, left)

    def names(self) -> set[str]:
        """Of all files that are there."""
        return {path.name for path in self._folder.glob("*.sealed")}

    def _remove(self, names: Iterable[str], zeroed: Set[str]) -> None:
        for name in names:
            path = self._folder / name
            # What cannot be removed now is removed when the state is opened next.
            with contextlib.suppress(OSError):
                if name in zeroed:
                    _zero(path)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._written, self._replaced, self._zeroed = [], [], set()


def _zero(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())


MINIMUM_KEY_BYTES = 16
_NONCE_BYTES = 12
_INFO = b"idiolect device state, version 1"


def checked_key(key: bytes) -> bytes:
    """The app's key as bytes. StateError: it is something else, or too short."""
    if not isinstance(key, bytes | bytearray) or len(key) < MINIMUM_KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
        raise StateError(f"key: found {found}, expected at least {MINIMUM_KEY_BYTES} random bytes from the app")
    return bytes(key)


class Cipher:
    """Seals and opens values. key: the app's secret, at least 16 bytes of full entropy (a random key, not a password:
    HKDF does not slow down guessing). salt: random, stored beside the data; a new one makes everything sealed under the
    old one unreadable. The derived key exists in memory only."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._aead = AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=_INFO).derive(checked_key(key)))

    def seal(self, value: bytes, place: str) -> bytes:
        """nonce | ciphertext | tag. ``place`` (table and name) is authenticated, so values cannot be swapped."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, value, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """The value that was sealed for ``place``. StateError: another key, another place or a damaged value."""
        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError) as error:
            raise StateError(
                f"{place}: the value cannot be decrypted, expected one sealed with this key; "
                "open the state with the key it was written with, or delete the folder to start afresh"
            ) from error
