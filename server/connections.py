"""HTTP connections that end when a client keeps the server waiting.

uvicorn waits as long as it takes for a request's head, and goes on reading a body that was refused already. Here a
client has ``head_seconds`` from connecting, or from the end of the last answer, until the head of its next request is
complete; then it is answered 408, or cut off where it has its answer. Bodies have a limit of their own
(:func:`server.routes.bodies.body_reader`). Nor does it refuse to hold ever more connections until the system's
descriptors are gone: here a connection beyond ``most`` takes the place of the one that has kept the server waiting
longest.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from device_sdk.wire.messages import Problem

__all__ = ["deadline_protocol"]


def deadline_protocol(head_seconds: float, most: int) -> type[asyncio.Protocol]:
    """What ``uvicorn.Config(http=...)`` takes. head_seconds: how long the head of a request may take. most: open
    connections."""

    class Bounded(_BoundedProtocol):
        seconds = head_seconds
        limit = most
        waiting: ClassVar = {}

    return Bounded


class _BoundedProtocol(H11Protocol):
    """waiting: the connections whose client is waited for, the longest first, in a dictionary for its order."""

    seconds: float
    limit: int
    waiting: ClassVar[dict[_BoundedProtocol, None]]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            # Where nobody is waited for, all are being answered, and the one that came last goes.
            next(iter(self.waiting), self)._cut()
        if not transport.is_closing():
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        """Start the time where the client is waited for, stop it where the application is at work."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.seconds, self._expired)
            self.waiting[self] = None

    def _stop(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._stop()
        self.transport.close()

    def _expired(self) -> None:
        self._stop()
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:  # a head that began and did not end
            self._answer(408, Problem(code="too_slow", detail="head: did not arrive in time"))
        self.transport.close()

    def _answer(self, status: int, problem: Problem) -> None:
        body = problem.model_dump_json().encode()
        headers: list[tuple[str, Any]] = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=b"Request Timeout"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
