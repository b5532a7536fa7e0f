"""The operators' web pages. They only read; an operator's token, shown once, opens them for some hours.

GET  /                          to the dashboard
GET  /dashboard                 overview
GET  /dashboard/rounds          /dashboard/rounds/{round}
GET  /dashboard/models
GET  /dashboard/marginals       /dashboard/marginals/{version}
GET  /dashboard/privacy
GET  /dashboard/audit
GET  /dashboard/style.css
GET  /dashboard/sign-in         POST: token -> a cookie that scripts cannot read and other sites cannot use
POST /dashboard/sign-out
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from server.operators.accounts import find_operator
from server.operators.actions import record
from server.operators.roles import BOOTSTRAP, Operator, Role
from server.problems import Refusal
from server.web.bodies import body_reader, service
from server.web.dashboard import access, pages
from server.web.dashboard.rendering import HEADERS, render, style
from server.web.routes.authorization import identify

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

Form = Annotated[bytes, Depends(body_reader(lambda own: 4096))]


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
    own = service(request)
    if not access.from_own_site(request.headers):
        return _elsewhere()
    token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
    try:
        operator = identify(request, token)
    except Refusal:
        told = "That is not the token of an operator of this server."
        return _html("sign_in.html", 401, page="", live=False, error=told)
    now = own.settings.clock()
    with own.database.write() as connection:
        record(connection, operator.name, "sign-in", "dashboard", now)
    found = RedirectResponse("/dashboard", 303, headers=HEADERS)
    found.set_cookie(
        access.COOKIE,
        access.ticket(operator.name, own.ticket_key, now),
        max_age=access.SECONDS,
        path="/dashboard",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return found


@router.post("/dashboard/sign-out")
def post_sign_out(request: Request) -> Response:
    if not access.from_own_site(request.headers):
        return _elsewhere()
    found = RedirectResponse("/dashboard/sign-in", 303, headers=HEADERS)
    found.delete_cookie(access.COOKIE, path="/dashboard")
    return found


@router.get("/dashboard")
def get_overview(request: Request, live: bool = True) -> Response:
    return _page(request, "overview", pages.overview, live=live)


@router.get("/dashboard/rounds")
def get_rounds(request: Request, live: bool = True) -> Response:
    return _page(request, "rounds", pages.rounds_page, live=live)


@router.get("/dashboard/rounds/{round_id}")
def get_round(request: Request, round_id: str) -> Response:
    return _page(request, "rounds", lambda own: pages.round_page(own, round_id), template="round.html")


@router.get("/dashboard/models")
def get_models(request: Request) -> Response:
    return _page(request, "models", pages.models)


@router.get("/dashboard/marginals")
def get_marginals(request: Request) -> Response:
    return _page(request, "marginals", lambda own: pages.marginals(own, None))


@router.get("/dashboard/marginals/{version}")
def get_marginals_version(request: Request, version: int) -> Response:
    return _page(request, "marginals", lambda own: pages.marginals(own, version))


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
    own = service(request)
    if (operator := _signed_in(request)) is None:
        return RedirectResponse("/dashboard/sign-in", 303, headers=HEADERS)
    try:
        shown = content(own)
    except Refusal as refusal:
        return _html("problem.html", refusal.status, page=page, live=False, operator=operator, detail=refusal.detail)
    return _html(template or f"{page}.html", 200, page=page, live=live, operator=operator, content=shown)


def _elsewhere() -> Response:
    told = "Another site asked for that. Sign in and out on these pages only."
    return _html("sign_in.html", 403, page="", live=False, error=told)


def _signed_in(request: Request) -> Operator | None:
    """Whose ticket the request shows, if they are still an operator."""
    own = service(request)
    ticket = request.cookies.get(access.COOKIE, "")
    name = access.holder(ticket, own.ticket_key, own.settings.clock())
    if name is None:
        return None
    if name == BOOTSTRAP:
        return Operator(name, Role.ADMINISTRATOR)
    with own.database.read() as connection:
        row = find_operator(connection, name)
    return None if row is None or row.revoked_at is not None else Operator(row.name, Role(row.role))


def _html(template: str, status: int, **content: Any) -> Response:
    return HTMLResponse(render(template, **content), status, HEADERS)
