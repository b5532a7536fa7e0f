"""HTTP connections that end when a client keeps the server waiting.

uvicorn waits as long as it takes for a request's head, and goes on reading a body that was refused already. Here a
client has ``head_seconds`` from connecting, or from the end of the last answer, until the head of its next request is
complete; then it is answered 408, or cut off where it has its answer. Bodies have a limit of their own
(:func:`server.routes.bodies.body_reader`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from device_sdk.wire.messages import Problem

__all__ = ["deadline_protocol"]


def deadline_protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """What ``uvicorn.Config(http=...)`` takes. head_seconds: how long the head of a request may take."""

    class Bounded(_DeadlineProtocol):
        seconds = head_seconds

    return Bounded


class _DeadlineProtocol(H11Protocol):
    seconds: float
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
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
