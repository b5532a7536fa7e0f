"""Reading what a client sends, within a number of bytes and seconds, and answering in the protocol's own messages."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import Message, Problem
from server.memory import give_back
from server.problems import Refusal
from server.rate_limit import key_of
from server.service import Service

log = logging.getLogger("idiolect.server")

FOUND = 64
"""Characters of a value that an answer may repeat."""
SECRETS = {"token"}
"""Fields whose values no answer repeats."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))
_Model = TypeVar("_Model", bound=BaseModel)


def service(request: Request) -> Service:
    """The server this request came to."""
    found: Service = request.app.state.service
    return found


def body_reader(
    limit: Callable[[Service], int], before: Callable[[Service, Request], int | None] = lambda server, request: None
) -> Callable[..., Awaitable[bytes]]:
    """A dependency that reads the body, counting bytes as they come, whatever the headers claim.

    before: refuses who may not send at all, so that nothing of theirs is held in memory.
    Raises Refusal: 413 ``too_large``, 408 ``too_slow``, 415 ``encoding``, 400 ``disconnected``."""

    async def read(request: Request, most: int = Depends(_gate(limit, before))) -> bytes:
        return await _read(request, most)

    return read


def upload_reader(
    limit: Callable[[Service], int], before: Callable[[Service, Request], int | None]
) -> Callable[..., AsyncIterator[bytes]]:
    """As :func:`body_reader`, of bodies that may be large: each has its room in memory, from before it is read until
    the request is over (:mod:`server.memory`).

    before: may say how many bytes are the most that this sender has to send, where that is less than the limit.
    Raises Refusal: as :func:`body_reader`, 503 ``no_room``, 429 ``too_many_requests``."""

    async def read(request: Request, most: int = Depends(_gate(limit, before))) -> AsyncIterator[bytes]:
        server = service(request)
        size = _declared(request, most)
        if size <= server.settings.limits.message_bytes:  # the number of connections bounds these
            yield await _read(request, most)
            return
        device = request.state.sender.device_id
        address = key_of(request.client.host if request.client is not None else "")
        try:
            with server.bodies.room(size, device=device, address=address):
                yield await _read(request, most)
        finally:
            if server.bodies.to_give_back():
                loop = asyncio.get_running_loop()
                # A moment later, when the last of it is no longer referred to.
                loop.call_later(0.5, loop.run_in_executor, None, give_back)

    return read


def _gate(
    limit: Callable[[Service], int], before: Callable[[Service, Request], int | None]
) -> Callable[[Request], int]:
    """Looks at the head of a request, and at who sends it; how many bytes its body may have."""

    def gate(request: Request) -> int:
        server = service(request)
        most = limit(server)
        _declared(request, most)
        bound = before(server, request)
        return most if bound is None else min(bound, most)

    return gate


def _declared(request: Request, most: int) -> int:
    """How many bytes a body has by its head, or may have where that does not say. Raises Refusal: 413, 415."""
    declared = request.headers.get("content-length", "")
    numeric = re.fullmatch(r"[0-9]+", declared) is not None
    if numeric and (len(declared) > 19 or int(declared) > most):
        raise Refusal(413, "too_large", f"body: found {declared[:40]} bytes, expected at most {most}")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "encoding", "body: expected no content-encoding", "Content-Encoding")
    if "transfer-encoding" in request.headers:
        return most
    return int(declared) if numeric else 0


async def _read(request: Request, most: int) -> bytes:
    """All of it, as long as it comes at the pace that is asked for."""
    limits = service(request).settings.limits
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds) as pace:
            begun = asyncio.get_running_loop().time()
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise Refusal(413, "too_large", f"body: more than {most} bytes")
                chunks.append(chunk)
                pace.reschedule(begun + limits.body_seconds + size / limits.body_rate)
    except TimeoutError as error:
        raise Refusal(408, "too_slow", "body: did not arrive in time") from error
    except ClientDisconnect as error:
        raise Refusal(400, "disconnected", "body: the client went away") from error
    return b"".join(chunks)


def parse(message: type[_Model], body: bytes | str) -> _Model:
    """Read a message. Raises Refusal: 422 ``bad_message`` naming the first field that is wrong, and of an operator's
    message what it holds; of a device's nothing is repeated, since it may be of its user."""
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:200] or None
        shown = "" if issubclass(message, Message) else found_value(first)
        raise Refusal(422, "bad_message", f"{message.__name__}: {shown}{first['msg'][:300]}", field) from error


def found_value(error: Mapping[str, Any]) -> str:
    """The start of an answer to one of pydantic's errors: the value, where it is short enough and no secret."""
    value = error["input"]
    if error["type"] == "missing" or any(str(part) in SECRETS for part in error["loc"]):
        return ""
    if (isinstance(value, str) and len(value) <= FOUND) or isinstance(value, float | None):
        return f"found {value!r}: "
    return f"found {value}: " if isinstance(value, int) and abs(value) < 10**FOUND else ""


def refused(error: ProtocolError, code: str, field: str | None = None) -> Refusal:
    """A contribution that broke the contract, as an answer."""
    return Refusal(422, code, str(error)[:500], field)


def problem(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    log.debug("refused: %d %s", refusal.status, refusal.code)
    detail = refusal.detail.encode("utf-8", "replace").decode()
    content = Problem(code=refusal.code, detail=detail, field=refusal.field)
    return answer(content, status=refusal.status, headers=refusal.headers | (headers or {}))


def answer(message: Message, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(message.model_dump_json(), status, headers, media_type="application/json")


def plain(content: Any, status: int = 200) -> Response:
    """An operators' answer: plain JSON, infinite numbers as the string ``Infinity``."""
    return Response(_JSON.dump_json(content), status, media_type="application/json")
