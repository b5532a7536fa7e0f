"""The half of a download that a device has, kept through crashes: one at a time, sealed like all of its state."""

from __future__ import annotations

import json
from dataclasses import dataclass

from device_sdk.state import Store

__all__ = ["PART", "Kept", "Partial"]

PART = 1 << 18
"""Bytes that are written at once, and lost at most."""
_TABLE = "downloads"


@dataclass(frozen=True, slots=True)
class Kept:
    """etag: strong, of the file that ``content`` is the beginning of."""

    etag: str
    content: bytes


class Partial:
    """Owns table ``downloads`` of a store while something is fetched."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts = 0
        self._waiting = bytearray()

    @property
    def path(self) -> str | None:
        """Of what is half here."""
        return None if (head := self._head()) is None else head[0]

    def resume(self, path: str) -> Kept | None:
        """The half of this file; of any other one it is dropped."""
        head = self._head()
        if head is None or head[0] != path:
            self.drop()
            return None
        names = [name for name in self._store.names(_TABLE) if name != "head"]
        self._parts, self._waiting = len(names), bytearray()
        return Kept(head[1], b"".join(self._store.get(_TABLE, name) or b"" for name in names))

    def begin(self, path: str, etag: str) -> None:
        """What comes is the file from its start."""
        with self._store.transaction():
            self.drop()
            self._store.put(_TABLE, "head", json.dumps({"path": path, "etag": etag}).encode())

    def append(self, chunk: bytes) -> None:
        self._waiting += chunk
        if len(self._waiting) >= PART:
            self._store.put(_TABLE, f"{self._parts:06d}", bytes(self._waiting))
            self._parts += 1
            self._waiting.clear()

    def drop(self) -> None:
        """It is all there, or of no use."""
        self._parts, self._waiting = 0, bytearray()
        names = self._store.names(_TABLE)
        if names:
            with self._store.transaction():
                for name in names:
                    self._store.delete(_TABLE, name)

    def _head(self) -> tuple[str, str] | None:
        content = self._store.get(_TABLE, "head")
        try:
            found = {} if content is None else json.loads(content)
            return str(found["path"]), str(found["etag"])
        except (ValueError, KeyError, TypeError):
            return None
