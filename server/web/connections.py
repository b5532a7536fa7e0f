"""HTTP connections that end when a client keeps the server waiting, and make room for others before.

A client has ``head_seconds`` from connecting, or from the end of the last answer, until the head of its next request is
complete; then it is answered 408, or cut off where it has its answer. Bodies have a pace of their own to keep
(:func:`server.web.bodies.body_reader`); an answer that nobody reads is given up after ``answer_seconds``.

A connection beyond ``connections``, or beyond the share of its address, takes the place of one that keeps the server
waiting: for a head, for a body, or for its answer to be read. Of all addresses the one with most connections gives way,
with the one that is waited for longest; a body that a device has signed for, and that comes, gives way to nobody."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import h11
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from device_sdk.wire.messages import Problem
from server.rate_limit import key_of
from server.settings import THIS_MACHINE, Limits

PROVED = "proved"
"""In the state of a request: its signature is known to be good, though its body is still to come."""
PROGRESS = 32 * 1024
"""Bytes of a body after which its connection counts as waited for from then on only."""
FRESH = 0.5
"""Seconds for which a connection has only just come, and what it says may lie unread: others give way first."""
UNKNOWN = ""
"""The address of this machine's programs, and of a proxy that has not said yet whom a request is from."""


def deadline_protocol(limits: Limits, trusted_proxies: Sequence[str] = THIS_MACHINE) -> type[asyncio.Protocol]:
    """What ``uvicorn.Config(http=...)`` takes. trusted_proxies: who is believed about whom a request is from; their
    connections are counted for those, one request at a time, and are not bounded by a share of their own."""

    class Bounded(_BoundedProtocol):
        bounds = limits
        trusted = ProxyHeadersMiddleware(_nobody, list(trusted_proxies)).trusted_hosts
        guests: ClassVar = {}
        there: ClassVar = set()

    return Bounded


class _BoundedProtocol(H11Protocol):
    """guests: the open connections by address, each with whether its client is waited for; those that are come in the
    order in which that began. there: all of them, without those that are being closed."""

    bounds: Limits
    trusted: Any
    guests: ClassVar[dict[str, _Guests]]
    there: ClassVar[set[_BoundedProtocol]]
    _address: str = UNKNOWN
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _received: int = 0
    _begun: float = 0.0
    _left: bool = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(UNKNOWN if self._through_proxy else key_of(self.client[0] if self.client else None) or UNKNOWN)
        if len(self.there) > self.bounds.connections:
            (self._most_patient() or self)._cut()
        if not transport.is_closing():
            self._watch()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        self._received += len(data)
        if self.cycle is not before and not self._left:
            self._begun = self.loop.time()
            self._told()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()
        self._look_at_answer(-1)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()
        self._watch()

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        if not self._left and self._through_proxy:
            self._enter(UNKNOWN)  # a proxy's next request may be from somebody else
            if self.cycle is not before:
                self._told()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    @property
    def _through_proxy(self) -> bool:
        return self.client is not None and self.client[0] in self.trusted

    def _told(self) -> None:
        """A trusted proxy may have said whom the request that has begun is from."""
        if not self._through_proxy:
            return
        told = b", ".join(value for name, value in self.headers if name == b"x-forwarded-for").decode("latin-1")
        if told:
            self._enter(key_of(self.trusted.get_trusted_client_address(told)[0]) or UNKNOWN)

    def _enter(self, address: str) -> None:
        """Be counted for an address, and make room among its connections where they are too many."""
        if not self._left and address == self._address:
            return
        self._leave()
        self._address, self._left = address, False
        own = self.guests.setdefault(address, _Guests())
        own.all.add(self)
        self.there.add(self)
        if address != UNKNOWN and len(own.all) > self.bounds.connections_per_address:
            (own.most_patient() or self)._cut()

    def _leave(self) -> None:
        """Be counted no more."""
        self._stop()
        self._read_on()
        self._left = True
        self.there.discard(self)
        if (own := self.guests.get(self._address)) is not None:
            own.all.discard(self)
            if not own.all:
                del self.guests[self._address]

    def _most_patient(self) -> _BoundedProtocol | None:
        """Whose client is waited for longest, of the address that has most connections. Where nobody is waited for, who
        is being answered for longest, if one address has more than its share."""
        crowds = sorted(self.guests.values(), key=lambda each: len(each.all), reverse=True)
        patient = (own.most_patient(latest) for latest in (self.loop.time() - FRESH, math.inf) for own in crowds)
        if (found := next((each for each in patient if each is not None), None)) is not None:
            return found
        if len(crowds[0].all) <= self.bounds.connections_per_address:
            return None
        answered = (each for each in crowds[0].all if each is not self and not each.settled)
        return min(answered, key=lambda each: each._begun, default=None)

    @property
    def settled(self) -> bool:
        """Whether what is waited for is a body that a device has signed for."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and bool(cycle.scope.get("state", {}).get(PROVED))

    def _watch(self) -> None:
        """Count the client as waited for, or not; start the time of a head where one is due."""
        if self._left:
            return
        cycle, own = self.cycle, self.guests[self._address]
        if self.transport.is_closing():
            if self._stalled is None and self.transport.get_write_buffer_size():  # it ends once all of it is taken
                self._await(own)
                self._look_at_answer(-1)
        elif cycle is None or cycle.response_complete:
            if self._deadline is None:
                self._deadline = self.loop.call_later(self.bounds.head_seconds, self._expired)
                self._await(own)
        elif cycle.more_body or self.flow.write_paused:
            self._end_deadline()
            if self not in own.waiting or self._received >= PROGRESS:
                self._await(own)
        else:
            self._stop()

    def _await(self, own: _Guests) -> None:
        own.waiting.pop(self, None)
        own.waiting[self] = self.loop.time()
        self._received = 0

    def _stop(self) -> None:
        if (own := self.guests.get(self._address)) is not None:
            own.waiting.pop(self, None)
        self._end_deadline()

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look_at_answer(self, left: int) -> None:
        """Give an answer up of which the client has taken nothing since ``left`` bytes were left."""
        self._read_on()
        size = self.transport.get_write_buffer_size()
        if size == left:
            self._cut()
        elif size and (self.flow.write_paused or self.transport.is_closing()):
            self._stalled = self.loop.call_later(self.bounds.answer_seconds, self._look_at_answer, size)

    def _read_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut(self) -> None:
        self._leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a close would wait until all of the answer is taken
        else:
            self.transport.close()

    def _expired(self) -> None:
        self._stop()
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:  # a head that began and did not end
            body = Problem(code="too_slow", detail="head: did not arrive in time").model_dump_json().encode()
            told = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            head = h11.Response(status_code=408, headers=list(told.items()), reason=b"Request Timeout")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._watch()


class _Guests:
    """Connections of one address. waiting: those whose client is waited for, the longest first, each with the time of
    the event loop since when."""

    def __init__(self) -> None:
        self.all: set[_BoundedProtocol] = set()
        self.waiting: dict[_BoundedProtocol, float] = {}

    def most_patient(self, latest: float = math.inf) -> _BoundedProtocol | None:
        """Who is waited for longest, of those for whom that began by ``latest``."""
        return next((each for each, since in self.waiting.items() if since <= latest and not each.settled), None)


async def _nobody(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that answers nothing: only its settings are of use here."""
