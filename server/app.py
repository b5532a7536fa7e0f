"""The HTTP server as an ASGI application. Loads neither torch nor a bundle's graphs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from server.problems import Refusal
from server.registry.initial import InitialModel
from server.rounds.evaluation import Evaluate
from server.rounds.server_step import Rehearse
from server.service import Service
from server.settings import ServerSettings
from server.web.bodies import found_value, problem
from server.web.middleware import Limited, Watched
from server.web.openapi import ROUTERS, document
from server.web.routes import dashboard
from server.web.routes.authorization import authorize


def create_app(
    settings: ServerSettings,
    initial: InitialModel | None = None,
    evaluate: Evaluate | None = None,
    rehearse: Rehearse | None = None,
) -> FastAPI:
    """Open the server's state and return the application that serves it.

    initial: registered when the database is new, compared with it otherwise; None serves what the database holds.
    evaluate: looks at each round's weights before they are published. rehearse: the pseudo-devices of rounds that want
    some (:class:`server.lab.rehearsal.PseudoDevices`). Raises ConfigurationError or StateError when the state cannot be
    opened. The application closes the state when it shuts down."""
    own = Service(settings, initial, evaluate, rehearse)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with own:
            yield

    # The document is a route of ours, with a row in the authorization table. Its viewers load scripts from elsewhere.
    without: dict[str, Any] = {"openapi_url": None, "docs_url": None, "redoc_url": None}
    app = FastAPI(lifespan=lifespan, dependencies=[Depends(authorize)], **without)
    app.openapi = document  # type: ignore[method-assign]
    app.state.service = own
    for router in (*ROUTERS, dashboard.router):
        app.include_router(router)
    for kind in (Refusal, RequestValidationError, HTTPException, DataError):
        app.add_exception_handler(kind, _refuse)
    app.add_middleware(Limited, buckets=own.address_rates, metrics=own.metrics)
    app.add_middleware(Watched, metrics=own.metrics)
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return app


async def _refuse(_request: Request, error: Exception) -> Response:
    match error:
        case Refusal():
            return problem(error)
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"][1:])[:200] or None
            return problem(Refusal(422, "bad_request", f"{found_value(first)}{first['msg'][:300]}", field))
        case HTTPException():
            codes = {404: "no_such_route", 405: "wrong_method"}
            refusal = Refusal(error.status_code, codes.get(error.status_code, "http"), str(error.detail))
            return problem(refusal, dict(error.headers or {}))
    # DataError: a value that no column can hold or be compared with; PostgreSQL's text has no NUL.
    return problem(Refusal(422, "unstorable", "a text of this request holds what no database stores, such as NUL"))
