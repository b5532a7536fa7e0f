"""What all routes share: who asks, how much and how often, and errors that say what to do."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from device_sdk.audio import check_sample_rate
from device_sdk.errors import (
    AudioError,
    ConfigurationError,
    FeedbackError,
    IdiolectError,
    LearningError,
    SessionError,
    StateError,
)
from device_sdk.listen.people import People, UnknownPerson

LARGEST_JSON = 1 << 20
_KNOWN = 4096  # addresses that are counted
STATUS: Mapping[type[IdiolectError], int] = {
    UnknownPerson: 401,
    AudioError: 422,
    ConfigurationError: 422,
    FeedbackError: 422,
    LearningError: 409,
    SessionError: 409,
    StateError: 503,
}


class Refused(IdiolectError):
    """An answer that is no success. code: for programs; field: which one is wrong."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


@dataclass(frozen=True, slots=True)
class Limits:
    """upload_bytes, upload_seconds: of one file; hours of silence are a small one. requests_a_minute: of one
    address. sessions: live ones at a time. idle_seconds: after which a live session that sends nothing ends."""

    upload_bytes: int = 25 << 20
    upload_seconds: float = 3600.0
    requests_a_minute: int = 600
    sessions: int = 32
    idle_seconds: float = 60.0


@dataclass(slots=True)
class Gate:
    """Owns the counts of who asked how often."""

    limits: Limits
    live: int = 0
    _asked: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def ask(self, address: str) -> None:
        """A bucket an address that fills as a minute goes by. Raises :class:`Refused` (429)."""
        most, now = self.limits.requests_a_minute, time.monotonic()
        left, since = self._asked.pop(address, (float(most), now))
        left = min(float(most), left + (now - since) * most / 60.0)
        self._asked[address] = max(0.0, left - 1.0), now
        while len(self._asked) > _KNOWN:
            self._asked.popitem(last=False)
        if left < 1.0:
            raise Refused(429, "too_many_requests", f"this address asks more than {most} times a minute; ask later")

    def check_room(self) -> None:
        """Raises :class:`Refused` (503) where as many are listened to as may be."""
        if self.live >= self.limits.sessions:
            raise Refused(503, "busy", f"{self.limits.sessions} are listened to already; try again later")


Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint) -> Endpoint:
    """A route whose errors are answers, in the form that OpenAI's clients read."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            gate(request).ask(request.client.host if request.client else "")
            return await endpoint(request)
        except IdiolectError as error:
            return failure(error)

    return answer


def failure(error: IdiolectError) -> Response:
    told = problem(error)
    headers = {"WWW-Authenticate": "Bearer"} if told["status"] == 401 else {}
    return JSONResponse({"error": told}, told["status"], headers)


def problem(error: IdiolectError) -> dict[str, Any]:
    if isinstance(error, Refused):
        status, code, param = error.status, error.code, error.field
    else:
        status = next((value for kind, value in STATUS.items() if isinstance(error, kind)), 500)
        code, param = _snake(type(error).__name__), str(error).partition(":")[0][:60]
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"status": status, "message": str(error), "type": kind, "param": param, "code": code}


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).strip("_")


def people(connection: HTTPConnection) -> People:
    found: People = connection.app.state.people
    return found


def gate(connection: HTTPConnection) -> Gate:
    found: Gate = connection.app.state.gate
    return found


def person(connection: HTTPConnection, name: str | None = None) -> str:
    """Whoever's token it is, or who is named: by ``name``, the query or the header ``X-Idiolect-Person``."""
    asked = name or connection.query_params.get("person") or connection.headers.get("x-idiolect-person")
    return people(connection).who(token(connection), asked or None)


def token(connection: HTTPConnection) -> str | None:
    """A browser opens sockets without headers, so that the query may hold it."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    found = given.strip() if scheme.lower() == "bearer" else connection.query_params.get("token")
    return found or None


def rate(connection: HTTPConnection) -> int:
    """Of samples, Hz, as the query says. Raises :class:`Refused`, AudioError."""
    given = connection.query_params.get("rate", "16000")
    if not given.isascii() or not given.isdigit() or len(given) > 7:
        raise Refused(422, "no_rate", f"rate: found {given[:20]!r}, expected Hz", "rate")
    return check_sample_rate(int(given), "rate")


async def received(request: Request, most: int, found: str) -> bytes:
    """The whole body. Raises :class:`Refused` (413), which says what was found, beyond so many bytes."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise Refused(413, "too_large", f"body: {found}")
    return bytes(content)


async def body(request: Request) -> dict[str, Any]:
    """A JSON object. Raises :class:`Refused`."""
    content = await received(request, LARGEST_JSON, f"more than {LARGEST_JSON} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "no_json", f"body: not JSON ({str(error)[:100]})") from error
    if not isinstance(found, dict):
        raise Refused(400, "no_object", f"body: found {type(found).__name__}, expected an object")
    return found
