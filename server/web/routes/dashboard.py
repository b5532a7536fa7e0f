"""The operators' web pages. They only read; an operator's token, shown once, opens them for some hours.

Signing in gives a ticket in a cookie that scripts cannot read and other sites cannot use: a time of expiry, a name and
their HMAC-SHA256 under a key that the server draws when it starts, never a token, at which a holder could guess.
Whether the operator is still one is looked up whenever a ticket is shown."""

import hashlib
import hmac
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from device_sdk.privacy.spending import stated
from server.operators.accounts import BOOTSTRAP, Operator, Role, find_operator, record
from server.problems import Refusal
from server.web.bodies import body_reader, service
from server.web.dashboard import pages
from server.web.routes.authorization import identify

router = APIRouter(include_in_schema=False)

Form = Annotated[bytes, Depends(body_reader(lambda server: 4096))]


@router.get("/")
def get_root() -> Response:
    return RedirectResponse("/dashboard", 307)


@router.get("/dashboard/style.css")
def get_style() -> Response:
    return Response(style(), headers={"Cache-Control": "max-age=3600"}, media_type="text/css")


@router.get("/dashboard/sign-in")
def get_sign_in() -> Response:
    return _html("sign_in.html", 200, page="", live=False, error="")


@router.post("/dashboard/sign-in")
def post_sign_in(request: Request, body: Form) -> Response:
    server = service(request)
    if not from_own_site(request.headers):
        return _elsewhere()
    token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
    try:
        operator = identify(request, token)
    except Refusal:
        told = "That is not the token of an operator of this server."
        return _html("sign_in.html", 401, page="", live=False, error=told)
    now = server.settings.clock()
    with server.database.write() as connection:
        record(connection, operator.name, "sign-in", "dashboard", now)
    found = RedirectResponse("/dashboard", 303, headers=HEADERS)
    value, secure = ticket(operator.name, server.ticket_key, now), request.url.scheme == "https"
    found.set_cookie(COOKIE, value, SECONDS, path="/dashboard", secure=secure, httponly=True, samesite="strict")
    return found


@router.post("/dashboard/sign-out")
def post_sign_out(request: Request) -> Response:
    if not from_own_site(request.headers):
        return _elsewhere()
    found = RedirectResponse("/dashboard/sign-in", 303, headers=HEADERS)
    found.delete_cookie(COOKIE, path="/dashboard")
    return found


@router.get("/dashboard")
def get_overview(request: Request, live: bool = True) -> Response:
    return _page(request, "overview", pages.overview, live=live)


@router.get("/dashboard/rounds")
def get_rounds(request: Request, live: bool = True) -> Response:
    return _page(request, "rounds", pages.rounds_page, live=live)


@router.get("/dashboard/rounds/{round_id}")
def get_round(request: Request, round_id: str) -> Response:
    return _page(request, "rounds", lambda server: pages.round_page(server, round_id), template="round.html")


@router.get("/dashboard/models")
def get_models(request: Request) -> Response:
    return _page(request, "models", pages.models)


@router.get("/dashboard/marginals")
@router.get("/dashboard/marginals/{version}")
def get_marginals(request: Request, version: int | None = None) -> Response:
    return _page(request, "marginals", lambda server: pages.marginals(server, version))


@router.get("/dashboard/privacy")
def get_privacy(request: Request) -> Response:
    return _page(request, "privacy", pages.privacy)


@router.get("/dashboard/audit")
def get_audit(request: Request) -> Response:
    return _page(request, "audit", pages.audit)


def _page(
    request: Request, page: str, content: Callable[[Any], pages.Page], *, template: str = "", live: bool = False
) -> Response:
    """The page, for whoever has a ticket; the way to one for anybody else."""
    if (operator := _signed_in(request)) is None:
        return RedirectResponse("/dashboard/sign-in", 303, headers=HEADERS)
    try:
        shown = content(service(request))
    except Refusal as refusal:
        return _html("problem.html", refusal.status, page=page, live=False, operator=operator, detail=refusal.detail)
    return _html(template or f"{page}.html", 200, page=page, live=live, operator=operator, content=shown)


def _elsewhere() -> Response:
    told = "Another site asked for that. Sign in and out on these pages only."
    return _html("sign_in.html", 403, page="", live=False, error=told)


def _signed_in(request: Request) -> Operator | None:
    """Whose ticket the request shows, if they are still an operator."""
    server = service(request)
    name = holder(request.cookies.get(COOKIE, ""), server.ticket_key, server.settings.clock())
    if name is None or name == BOOTSTRAP:
        return None if name is None else Operator(name, Role.ADMINISTRATOR)
    with server.database.read() as connection:
        row = find_operator(connection, name)
    return None if row is None or row.revoked_at is not None else Operator(row.name, Role(row.role))


def _html(template: str, status: int, **content: Any) -> Response:
    """The page: a template with every value escaped. A name that it uses and ``content`` lacks is an error."""
    return HTMLResponse(_environment().get_template(template).render(**content), status, HEADERS)


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every page: nothing is loaded from elsewhere, nothing runs, nothing is kept."""


COOKIE = "idiolect_dashboard"
SECONDS = 12 * 3600
"""How long a ticket is good for."""


def ticket(name: str, secret: str, now: float) -> str:
    """A ticket for the operator ``name``, who showed a token at ``now``, seconds since the epoch."""
    expiry = str(int(now) + SECONDS)
    return f"{expiry}.{_mark(secret, expiry, name)}.{name}"


def holder(found: str, secret: str, now: float) -> str | None:
    """Whose ticket this is; None where it was not made with this secret or has expired."""
    expiry, mark, name = (*found.split(".", 2), "", "", "")[:3]
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16):
        return None
    # Compared before the time is looked at, so that a wrong mark tells nothing about either.
    good = hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(secret, expiry, name).encode())
    return name if good and now < int(expiry) else None


def from_own_site(headers: Mapping[str, str]) -> bool:
    """Whether a form was sent by a page of this server, or by no page at all.

    Browsers say so themselves (Sec-Fetch-Site), where they do not speak plain HTTP to another machine; else they name
    the page's site, which is then compared with the one that was asked. A program that is no browser says neither."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


def _mark(secret: str, expiry: str, name: str) -> str:
    key = hmac.digest(secret.encode(), b"idiolect dashboard ticket", "sha256")
    return hmac.new(key, f"{expiry}.{name}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


@cache
def style() -> str:
    """The style sheet of every page."""
    return files("server.web.dashboard").joinpath("dashboard.css").read_text("utf-8")


@cache
def _environment() -> Environment:
    loader, strict = PackageLoader("server.web.dashboard"), StrictUndefined
    environment = Environment(loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "moment": _moment,
        "number": _number,
        "epsilon": stated,
        "span": _span,
        "size": _size,
        "machine": _machine,
    }
    return environment


def _moment(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _machine(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = int(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
