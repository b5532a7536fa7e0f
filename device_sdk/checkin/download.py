"""A public file over connections that break: bounded before it comes, and gone on with where it broke off.

What is gone on with is asked for by the file's strong ETag (If-Range), so that a file that was changed meanwhile begins
anew. Nothing is trusted for it: what is in the file is checked by whoever wants it, when all of it is there."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Protocol

from device_sdk.checkin.connection import PROBLEM_BYTES, RETRIED, Answer, Broken, Connection, TooSlow, refusal
from device_sdk.errors import CheckInError

if TYPE_CHECKING:
    from device_sdk.state import Store

__all__ = ["PART", "Partial", "download"]

PART = 1 << 18
"""Bytes that are written at once, and lost at most."""
_TABLE = "downloads"
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/[0-9]{1,15}")


class Asking(Protocol):
    """What is needed of a :class:`device_sdk.checkin.client.Client`."""

    url: str
    bytes_down: int

    def wait(self, failures: int) -> None: ...


def download(
    client: Asking,
    connection: Connection,
    path: str,
    limit: int,
    seconds: float,
    attempts: int,
    partial: Partial | None,
) -> bytes:
    """See :meth:`device_sdk.checkin.client.Client.download`. attempts: in a row without a byte of the file."""
    where, started, trouble, failures = f"{client.url}{path}", time.monotonic(), "", 0
    content, etag = (bytearray(), None) if partial is None else partial.resume(path)
    while failures < attempts:
        if failures:
            client.wait(failures)
        headers = {}
        if content and etag is not None:
            headers = {"Range": f"bytes={len(content)}-", "If-Range": etag}
        before, problem = len(content), bytearray()
        try:
            with connection.exchange("GET", where, headers, b"", seconds - (time.monotonic() - started)) as answer:
                goes_on = answer.status == 206 and _goes_on(answer, len(content), etag)
                unusable = answer.status in (206, 416) and not goes_on
                if unusable or (answer.ok and not goes_on):  # from the start
                    content, etag, before = bytearray(), None if unusable else _strong(answer), 0
                    if partial is not None:
                        partial.begin(path, etag)
                if unusable:
                    failures, trouble = failures + 1, "found another range than the one asked for"
                    continue
                most, target = (limit, content) if answer.ok else (PROBLEM_BYTES, problem)
                for chunk in answer.pieces():
                    target += chunk
                    client.bytes_down += len(chunk)
                    if len(target) > most:
                        if partial is not None:
                            partial.drop()
                        raise CheckInError(f"{where}: found more than {most} bytes; the download is dropped")
                    if partial is not None and etag is not None and answer.ok:
                        partial.append(chunk)
        except TooSlow:
            what = "dropped" if partial is None else "gone on with later"
            raise CheckInError(f"{where}: not there after {seconds:.3g} s; the download is {what}") from None
        except Broken as error:
            failures = 1 if len(content) > before else failures + 1
            trouble = str(error)
            continue
        if answer.ok:
            return bytes(content)
        if answer.status not in RETRIED:
            raise refusal(where, answer.status, bytes(problem))
        failures, trouble = failures + 1, str(refusal("answer", answer.status, bytes(problem)))
    raise CheckInError(f"{where}: no usable answer after {attempts} tries ({trouble})")


def _goes_on(answer: Answer, start: int, etag: str | None) -> bool:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    return match is not None and int(match[1]) == start and etag is not None and _strong(answer) == etag


def _strong(answer: Answer) -> str | None:
    etag = answer.headers.get("etag", "")
    return etag if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', etag) else None


class Partial:
    """Owns table ``downloads`` of a store: the half of one download that is here, kept through crashes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts = 0
        self._waiting = bytearray()

    @property
    def path(self) -> str | None:
        """Of what is half here."""
        return None if (head := self._head()) is None else head[0]

    def resume(self, path: str) -> tuple[bytearray, str | None]:
        """The half of this file and its strong ETag; of any other one it is dropped."""
        head = self._head()
        if head is None or head[0] != path:
            self.drop()
            return bytearray(), None
        names = [name for name in self._store.names(_TABLE) if name != "head"]
        self._parts, self._waiting = len(names), bytearray()
        return bytearray(b"".join(self._store.get(_TABLE, name) or b"" for name in names)), head[1]

    def begin(self, path: str, etag: str | None) -> None:
        """What comes is the file from its start; without an ETag nothing of it is kept."""
        with self._store.transaction():
            self.drop()
            if etag is not None:
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
            head = {} if content is None else json.loads(content)
            return str(head["path"]), str(head["etag"])
        except (ValueError, KeyError, TypeError):
            return None
