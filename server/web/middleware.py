"""What happens to every request around its route: it gets an id, is counted, timed and logged, and comes not too often.

Routes are named by their template, never by the address that was asked for; nothing names a device."""

import logging
import math
import time
from typing import Literal
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.logs import REQUEST, fields
from server.metrics import Metrics
from server.problems import Refusal
from server.rate_limit import Buckets, key_of
from server.web.bodies import problem

log = logging.getLogger("idiolect.server")
requests = logging.getLogger("idiolect.requests")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEADER = b"x-request-id"


class Watched:
    """Gives every request an id, counts, times and logs it, and answers what failed unexpectedly."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        request = uuid4().hex
        token = REQUEST.set(request)
        status: int | None = None

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, request.encode())]}
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            log.error("%s %s failed", _method(scope), _route(scope), exc_info=error)
            if status is not None:
                raise  # the answer has begun: the connection is cut, so that nobody takes it for a whole one
            told = "the server failed; nothing of this request was counted, send it again"
            await problem(Refusal(500, "internal", told))(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            method, route, found = _method(scope), _route(scope), status or 500
            self.metrics.requests.labels(method, route, str(found)).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            operator = scope.get("state", {}).get("operator")
            named = {} if operator is None else {"operator": operator.name}
            line = fields(method=method, route=route, status=found, seconds=round(seconds, 6), **named)
            requests.info("answered", extra=line)
            REQUEST.reset(token)


class Limited:
    """Answers 429 to whoever asks too often, before anything else is done."""

    def __init__(self, app: ASGIApp, buckets: Buckets, metrics: Metrics) -> None:
        self.app = app
        self.buckets = buckets
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                check_rate(scope, "address", self.buckets, self.metrics)
        except Refusal as refusal:
            await problem(refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def check_rate(
    scope: Scope, by: Literal["address", "device", "enrolment"], buckets: Buckets, metrics: Metrics, key: str = ""
) -> None:
    """Count a request for its address, or for ``key``; those of this machine's own programs are not counted. Raises
    Refusal: 429 ``too_many_requests``."""
    address = key_of((scope.get("client") or ("",))[0])
    if address is None or not (seconds := buckets.wait(key or address)):
        return
    metrics.limited.labels(by).inc()
    who, whole = "this device" if by == "device" else "this address", math.ceil(seconds)
    raise Refusal(429, "too_many_requests", f"{who} asks too often; ask again in {whole} s", retry_after=whole)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else "other"


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "unmatched"))
