"""Reading what a client sends, within a number of bytes and seconds, and answering in the protocol's own messages."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import Message, Problem
from server.problems import Refusal
from server.service import Service

__all__ = ["answer", "body_reader", "finite", "parse", "plain", "problem", "refused", "service"]

_Model = TypeVar("_Model", bound=BaseModel)


def service(request: Request) -> Service:
    """The server this request came to."""
    found: Service = request.app.state.service
    return found


def _anybody(request: Request) -> None:
    """Lets everybody send."""


def body_reader(
    limit: Callable[[Service], int], before: Callable[[Request], None] = _anybody
) -> Callable[..., Awaitable[bytes]]:
    """A dependency that reads the body, counting bytes as they come, whatever the headers claim.

    before: refuses who may not send at all, so that nothing of theirs is held in memory.
    Raises Refusal: 413 ``too_large``, 408 ``too_slow``, 415 ``encoding``, 400 ``disconnected``.
    """

    async def read(request: Request, _: None = Depends(before)) -> bytes:
        own = service(request)
        most = limit(own)
        declared = request.headers.get("content-length", "")
        if re.fullmatch(r"[0-9]+", declared) and (len(declared) > 19 or int(declared) > most):
            raise Refusal(413, "too_large", f"body: found {declared[:40]} bytes, expected at most {most}")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal(415, "encoding", "body: expected no content-encoding", "Content-Encoding")
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(own.settings.limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise Refusal(413, "too_large", f"body: more than {most} bytes")
                    chunks.append(chunk)
        except TimeoutError as error:
            raise Refusal(408, "too_slow", "body: did not arrive in time") from error
        except ClientDisconnect as error:
            raise Refusal(400, "disconnected", "body: the client went away") from error
        return b"".join(chunks)

    return read


def parse(message: type[_Model], body: bytes | str) -> _Model:
    """Read a message. Raises Refusal: 422 ``bad_message`` naming the first field that is wrong."""
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:200] or None
        raise Refusal(422, "bad_message", f"{message.__name__}: {first['msg'][:300]}", field) from error


def refused(error: ProtocolError, code: str, field: str | None = None) -> Refusal:
    """A contribution that broke the contract, as an answer."""
    return Refusal(422, code, str(error)[:500], field)


def problem(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    detail = refusal.detail.encode("utf-8", "replace").decode()
    content = Problem(code=refusal.code, detail=detail, field=refusal.field)
    return answer(content, status=refusal.status, headers=refusal.headers | (headers or {}))


def answer(message: Message, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(message.model_dump_json(), status, headers, media_type="application/json")


def plain(content: Any, status: int = 200) -> Response:
    """An operators' answer: plain JSON, infinite numbers as the string ``Infinity``."""
    return JSONResponse(finite(content), status)


def finite(value: Any) -> Any:
    """JSON has no infinite numbers: they are told by name."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
