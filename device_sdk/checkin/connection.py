"""Connections to one server: every exchange is bounded in bytes and in time, whatever comes or does not come.

A request runs in a thread of its own, which hands on what arrives, piece by piece. Whoever asked waits no longer than
the exchange may take, or until its permit is ended; what comes later is dropped, and the connection with it. No answer
is ever decoded: none is asked for in another form than its own, and one in another form is refused, so that a limit
counts what memory holds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from email.utils import parsedate_to_datetime
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pydantic import ValidationError

from device_sdk.errors import CheckInError
from device_sdk.permit import current
from device_sdk.wire.messages import Problem

if TYPE_CHECKING:
    import httpx

    from device_sdk.permit import Permit

UNKNOWN = "unknown"
"""Code of a refusal that is no Problem: something between device and server answered, or another server did."""
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
PROBLEM_BYTES = 1 << 16
"""Of an answer that is an error."""
_WAITING = 4
"""Pieces that wait to be taken, of at most 64 KiB each; then the connection waits."""


class Broken(Exception):
    """The connection broke, or there is none: it may be tried again."""


class TooSlow(CheckInError):
    """The exchange took longer than it may."""


class Refused(CheckInError):
    """The server said no. status: HTTP's; code: its Problem's; server_time: since the epoch, where it says so."""

    def __init__(self, message: str, status: int, code: str, server_time: float | None = None) -> None:
        super().__init__(message, status, code, server_time)  # what copies are made of, also in other processes
        self.status, self.code, self.server_time = status, code, server_time

    def __str__(self) -> str:
        return str(self.args[0])


def refusal(where: str, status: int, content: bytes, date: str = "") -> Refused:
    """An answer that is an error, by what its Problem says. where: who said it, for the message; date: the header."""
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        return Refused(f"{where}: refused with status {status}, without a reason", status, UNKNOWN)
    field = f"{problem.field}: " if problem.field else ""
    message = f"{where}: refused with status {status}, {problem.code}: {field}{problem.detail}"
    return Refused(message, status, problem.code, _server_time(date))


def _server_time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


class Connection:
    """Owns the sockets."""

    def __init__(self, timeout: float, transport: httpx.BaseTransport | None, *, proxies: bool) -> None:
        """timeout: seconds that the server may be silent. proxies: the system's may be used."""
        import httpx

        # What the server sends elsewhere is never followed: it would take signed requests and tokens there.
        self._http = httpx.Client(timeout=timeout, transport=transport, trust_env=proxies, follow_redirects=False)
        self._sockets: WeakSet[socket] = WeakSet()
        self._lock = threading.Lock()

    @contextmanager
    def exchange(
        self, method: str, url: httpx.URL | str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Iterator[Answer]:
        """Sends a request, and gives its answer while it comes. seconds: for all of it, from the name of the server to
        the last byte. Broken; TooSlow; CheckInError: the permit is over, or the answer has another form than its own.
        """
        permit = current()
        answer = Answer(str(url), seconds, permit)
        headers, trace = {"Accept-Encoding": "identity", **headers}, {"trace": self._trace}
        request = self._http.build_request(method, url, headers=headers, content=body, extensions=trace)
        threading.Thread(target=answer.run, args=(self._http, request), name="idiolect connection", daemon=True).start()
        try:
            with nullcontext() if permit is None else permit.waking(answer.wake):
                answer.begin()
                yield answer
        finally:
            if not answer.leave():
                self._cut()

    def close(self) -> None:
        self._http.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remembers the sockets that are opened, as httpx tells of them."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            found = info["return_value"].get_extra_info("socket")
            if isinstance(found, socket):
                with self._lock:
                    self._sockets.add(found)

    def _cut(self) -> None:
        """Ends whatever still waits on a socket. Another device's request over the same sockets is tried again."""
        with self._lock:
            for each in self._sockets:
                with suppress(OSError, ValueError):  # of TLS too: its own end would wait for the other side
                    socket.shutdown(each, SHUT_RDWR)


class Answer:
    """An exchange, between who asks and the thread that sends and reads. status, headers: once it has begun."""

    status: int
    headers: Mapping[str, str]

    def __init__(self, url: str, seconds: float, permit: Permit | None) -> None:
        self._url, self._seconds, self._permit = url, seconds, permit
        self._until = time.monotonic() + (seconds if permit is None else min(seconds, permit.remaining()))
        self._changed = threading.Condition()
        self._pieces: deque[Any] = deque()
        self._left = self._over = False

    def begin(self) -> None:
        """Waits for the head of the answer."""
        self.status, self.headers = self._take()
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            why = "nothing is unpacked that was not asked for"
            raise CheckInError(f"{self._url}: content-encoding: found {encoding[:40]!r}, expected none: {why}")

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def pieces(self) -> Iterator[bytes]:
        """The body, in pieces as they come."""
        while (piece := self._take()) is not None:
            yield piece

    def read(self, limit: int) -> bytes:
        """All of the body. CheckInError: it is longer than ``limit`` bytes."""
        content = bytearray()
        for piece in self.pieces():
            content += piece
            if len(content) > limit:
                raise CheckInError(f"{self._url}: found more than {limit} bytes; the answer is dropped")
        return bytes(content)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> bool:
        """Nothing more is wanted. Returns whether the exchange is over: else its connection is of no use."""
        with self._changed:
            self._left = True
            self._pieces.clear()
            self._changed.notify_all()
            return self._over

    def run(self, http: httpx.Client, request: httpx.Request) -> None:
        """In a thread of its own: sends, and hands on what comes."""
        try:
            answer = http.send(request, stream=True)
            try:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                going = self._give((answer.status_code, headers))
                # An app's own transport may have read it all.
                pieces = iter([answer.content]) if answer.is_stream_consumed else answer.iter_raw()
                while going and (piece := next(pieces, None)) is not None:
                    going = self._give(piece)
            finally:
                answer.close()
            self._give(None, last=True)
        except BaseException as error:  # whoever asked decides what to make of it
            self._give(error, last=True)

    def _give(self, piece: Any, last: bool = False) -> bool:
        """Whether there is still somebody to give it to."""
        with self._changed:
            while len(self._pieces) >= _WAITING and not self._left:
                self._changed.wait()
            self._over = last
            self._pieces.append(piece)
            self._changed.notify_all()
            return not self._left

    def _take(self) -> Any:
        import httpx

        with self._changed:
            while True:
                if self._permit is not None:
                    self._permit.check()
                left = self._until - time.monotonic()
                if self._pieces and (left > 0 or self._over):
                    break
                if left <= 0 and self._permit is not None and not self._permit.remaining():
                    raise self._permit.late()
                if left <= 0:
                    raise TooSlow(f"{self._url}: not there after {self._seconds:.3g} s")
                self._changed.wait(left)
            piece = self._pieces.popleft()
            self._changed.notify_all()
        if isinstance(piece, httpx.HTTPError):
            raise Broken(f"{type(piece).__name__}: {piece}") from piece
        if isinstance(piece, BaseException):
            raise piece
        return piece
