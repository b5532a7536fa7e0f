"""The HTTP server as an ASGI application. Loads neither torch nor a bundle's graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.metrics import Metrics
from server.problems import Refusal
from server.registry.initial import InitialModel
from server.rounds.advance import Evaluate
from server.rounds.releases import Rehearse
from server.routes import dashboard, devices, health, operators, secure_aggregation, updates
from server.routes.bodies import problem
from server.service import Service
from server.settings import ServerSettings

__all__ = ["create_app"]

log = logging.getLogger("idiolect.server")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def create_app(
    settings: ServerSettings,
    initial: InitialModel | None = None,
    evaluate: Evaluate | None = None,
    rehearse: Rehearse | None = None,
) -> FastAPI:
    """Open the server's state and return the application that serves it.

    initial: registered when the database is new, compared with it otherwise; None serves what the database holds.
    evaluate: looks at each round's weights before they are published. rehearse: the pseudo-devices of rounds that want
    some (:class:`server.rehearsal.PseudoDevices`). Raises ConfigurationError or StateError when the state cannot be
    opened. The application closes the state when it shuts down.
    """
    own = Service(settings, initial, evaluate, rehearse)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with own:
            yield

    app = FastAPI(
        title="idiolect server",
        description="Devices check in, send bounded and noised contributions, and fetch models and marginals.",
        version="1",
        lifespan=lifespan,
    )
    app.state.service = own
    for routes in (devices, secure_aggregation, updates, operators, health, dashboard):
        app.include_router(routes.router)
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(_Counting, metrics=own.metrics)
    return app


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return problem(error, {"WWW-Authenticate": "Bearer"} if error.code == "bad_token" else None)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])[:200] or None
    return problem(Refusal(422, "bad_request", str(first["msg"])[:300], field))


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "no_such_route", 405: "wrong_method"}
    refusal = Refusal(error.status_code, codes.get(error.status_code, "http"), str(error.detail))
    return problem(refusal, dict(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, _route(request.scope), exc_info=error)
    return problem(Refusal(500, "internal", "the server failed; nothing of this request was counted, send it again"))


class _Counting:
    """Counts and times requests by route template, never by address or device."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = _route(scope)
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)


def _route(scope: Any) -> str:
    route = scope.get("route")
    return str(getattr(route, "path", "unmatched"))
