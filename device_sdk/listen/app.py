"""The HTTP side of the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from device_sdk.listen import feedback, me, openai, reading
from device_sdk.listen.gate import Endpoint, Gate, Refused, failure, guarded
from device_sdk.listen.live import listen
from device_sdk.listen.people import People

PAGE = Path(__file__).with_name("page")
SAFE = {
    b"content-security-policy": b"default-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}


LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def create_app(
    people: People, gate: Gate, *, page: bool = True, files: bool = True, hosts: Sequence[str] = LOOPBACK
) -> Starlette:
    """page: serve it at ``/``; files: OpenAI's API. hosts: names that this server is asked by; a page of another name
    that points here is refused."""
    routes: list[BaseRoute] = [
        _route("/v1/feedback", feedback.post_feedback, "POST"),
        _route("/v1/me", me.get_me, "GET"),
        _route("/v1/me/consent", me.put_consent, "PUT"),
        _route("/v1/me/vocabulary", me.vocabulary, "GET", "POST", "DELETE"),
        _route("/v1/me/vocabulary/undo", me.undo, "POST"),
        _route("/v1/me/forget", me.forget, "POST"),
        _route("/v1/me/enrolment", reading.enrolment, "GET", "POST", "PUT", "DELETE"),
        _route("/health", _health, "GET"),
        WebSocketRoute("/v1/listen", listen),
    ]
    if files:
        routes += [
            _route("/v1/models", openai.get_models, "GET"),
            _route("/v1/audio/transcriptions", openai.post_transcription, "POST"),
        ]
    routes.append(_route("/v1/{rest:path}", _nothing, "GET", "POST", "PUT", "DELETE"))
    if page:
        routes.append(Mount("/", StaticFiles(directory=PAGE, html=True)))
    known = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app = Starlette(routes=routes, middleware=[known, Middleware(_Safe)], exception_handlers={HTTPException: _refused})
    app.state.people, app.state.gate = people, gate
    return app


def _route(path: str, endpoint: Endpoint, *methods: str) -> Route:
    return Route(path, guarded(endpoint), methods=list(methods))


async def _health(_: Request) -> Response:
    return JSONResponse({"ready": True})


async def _nothing(request: Request) -> Response:
    raise Refused(404, "no_such_route", f"{request.method} {request.url.path[:80]}: this server has no such route")


async def _refused(_: Request, error: Exception) -> Response:
    """What no route was asked about, in the same form."""
    assert isinstance(error, HTTPException)
    return failure(Refused(error.status_code, "refused", f"request: {error.detail}"))


class _Safe:
    """Headers that keep the page to itself, and other pages from speaking in a person's name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not _same_origin(dict(scope["headers"])):
            if scope["type"] == "http":
                refused = JSONResponse({"error": {"message": "origin: another page's; open this server's own"}}, 403)
                await refused(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008, "reason": "origin: another page's"})
            return

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *SAFE.items()]}
            await send(message)

        await self._app(scope, receive, safe)


def _same_origin(headers: dict[bytes, bytes]) -> bool:
    """A browser names the page that asks; other clients name none."""
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    return origin is None or origin.partition(b"://")[2] == host
