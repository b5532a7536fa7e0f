"""Who may call which route: one table, which the server asks before it reads a body, and a test walks.

A route without a row is refused to everybody. Signatures of devices and enrolment tokens lie in what is read later;
their routes check them first thing (:mod:`server.web.routes.devices`, :mod:`server.devices.enrolment`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection

from server.devices.enrolment import same_secret
from server.operators.accounts import BOOTSTRAP, Action, Operator, Role, record, who_shows
from server.problems import Refusal
from server.web.bodies import service


class Caller(StrEnum):
    """Who is let through. The last three are roles of operators, each of which may do what the one before may."""

    ANYBODY = "anybody"
    ENROLLING = "whoever has an enrolment token"
    DEVICE = "an enrolled device, by its signature"
    SIGNED_IN = "an operator of any role, by the cookie of a sign-in"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


_ROLES: Final[Mapping[Caller, Role]] = {
    Caller.VIEWER: Role.VIEWER,
    Caller.OPERATOR: Role.OPERATOR,
    Caller.ADMINISTRATOR: Role.ADMINISTRATOR,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """why: what there is to say about who may call it, where that is not plain."""

    who: Caller
    why: str = ""


_V1, _OPERATOR = "/v1", "/v1/operator"
_PUBLISHED = (
    "published to every device, so nobody is kept from it: a signature would hide nothing from whoever may enrol. It "
    "names no device, holds what privacy allows to release, is bound by the digest that a signed check-in or signed "
    "metadata announces, and is rate-limited by address"
)
_PAGE = "pages show what a viewer may read"
_PAGES = ("", "/rounds", "/rounds/{round_id}", "/models", "/marginals", "/marginals/{version}", "/privacy", "/audit")
_ROUND_STEPS = ("", *(f"/{{round_id}}/{step}" for step in ("open", "close", "abandon")))
_ACCOUNTS = ("operators", "enrolment-tokens")
_ROUND = f"{_V1}/rounds/{{round_id}}"

TABLE: Final[Mapping[tuple[str, str], Rule]] = {
    # Devices
    ("POST", f"{_V1}/enrol"): Rule(Caller.ENROLLING),
    ("POST", f"{_V1}/check-in"): Rule(Caller.DEVICE),
    **{("POST", _ROUND + end): Rule(Caller.DEVICE) for end in ("/marginals", "/deltas", "/words")},
    **{("POST", _ROUND + end): Rule(Caller.DEVICE) for end in ("/aggregation", "/aggregation/{stage}")},
    ("GET", f"{_V1}/models/{{version}}"): Rule(Caller.ANYBODY, _PUBLISHED),
    ("GET", f"{_V1}/models/{{version}}/from/{{base}}"): Rule(Caller.ANYBODY, _PUBLISHED),
    ("GET", f"{_V1}/marginals/{{version}}"): Rule(Caller.ANYBODY, _PUBLISHED),
    ("GET", f"{_V1}/updates/{{name}}"): Rule(Caller.ANYBODY, "metadata signed for everybody, as its standard has it"),
    # Operators who read
    **{("GET", f"{_OPERATOR}/{end}"): Rule(Caller.VIEWER) for end in ("me", "status", "privacy", "models", "rollout")},
    **{("GET", f"{_OPERATOR}/{end}"): Rule(Caller.VIEWER) for end in ("rounds", "rounds/{round_id}")},
    **{("GET", f"{_OPERATOR}/{end}"): Rule(Caller.VIEWER) for end in ("marginals", "marginals/{version}")},
    ("GET", f"{_OPERATOR}/devices"): Rule(Caller.VIEWER, "ids are digests of public keys"),
    ("GET", f"{_OPERATOR}/actions"): Rule(Caller.VIEWER, "what operators do is for all of them to see"),
    ("GET", "/metrics"): Rule(Caller.VIEWER, "tells the size of the fleet; Prometheus shows a viewer's token"),
    # Operators who act
    **{("POST", f"{_OPERATOR}/rounds{end}"): Rule(Caller.OPERATOR) for end in _ROUND_STEPS},
    **{("POST", f"{_OPERATOR}/rollout{end}"): Rule(Caller.OPERATOR) for end in ("", "/promote", "/roll-back")},
    **{("POST", f"{_OPERATOR}/marginals{end}"): Rule(Caller.OPERATOR) for end in ("", "/{version}/publish")},
    **{("POST", f"{_OPERATOR}/models/{{version}}{end}"): Rule(Caller.OPERATOR) for end in ("", "/publish")},
    ("POST", f"{_OPERATOR}/devices/{{device_id}}/revoke"): Rule(Caller.OPERATOR),
    # Operators who say who may
    **{("GET", f"{_OPERATOR}/{kind}"): Rule(Caller.ADMINISTRATOR) for kind in _ACCOUNTS},
    **{("POST", f"{_OPERATOR}/{kind}"): Rule(Caller.ADMINISTRATOR) for kind in _ACCOUNTS},
    **{("POST", f"{_OPERATOR}/{kind}/{{name}}/revoke"): Rule(Caller.ADMINISTRATOR) for kind in _ACCOUNTS},
    # The web pages
    ("GET", "/"): Rule(Caller.ANYBODY, "leads to the dashboard"),
    ("GET", "/dashboard/style.css"): Rule(Caller.ANYBODY, "the sign-in page needs it"),
    ("GET", "/dashboard/sign-in"): Rule(Caller.ANYBODY, "where the token is shown"),
    ("POST", "/dashboard/sign-in"): Rule(Caller.ANYBODY, "checks the token itself, and answers with a page"),
    ("POST", "/dashboard/sign-out"): Rule(Caller.ANYBODY, "takes the caller's own cookie away"),
    **{("GET", f"/dashboard{page}"): Rule(Caller.SIGNED_IN, _PAGE) for page in _PAGES},
    # Whoever watches over the process
    ("GET", "/healthz"): Rule(Caller.ANYBODY, "a load balancer has no token, and it tells only that the process runs"),
    ("HEAD", "/healthz"): Rule(Caller.ANYBODY, "as GET"),
    ("HEAD", "/readyz"): Rule(Caller.ANYBODY, "as GET"),
    ("GET", "/readyz"): Rule(Caller.ANYBODY, "a load balancer has no token; names what is not ready, never why"),
    ("GET", "/openapi.json"): Rule(Caller.ANYBODY, "the interface is no secret"),
}
"""(method, route) -> who may call it. Nothing else is served."""


async def authorize(request: Request) -> None:
    """Lets a request through, or raises Refusal: 401 ``bad_token``, ``token_revoked``; 403 ``role``, ``no_rule``."""
    route = getattr(request.scope.get("route"), "path", "")
    rule = TABLE.get((request.method, route))
    if rule is None:
        raise Refusal(403, "no_rule", f"{request.method} {route}: nobody may call this route")
    needed = _ROLES.get(rule.who)
    if needed is None:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    # Only operators wait for the database here, and for a thread of their own to ask it.
    found = await run_in_threadpool(identify, request, token if scheme.lower() == "bearer" else "")
    if not found.role.includes(needed):
        raise Refusal(403, "role", f"operator {found.name} is {found.role}; this wants {needed}", "Authorization")
    request.state.operator = found


def identify(request: Request, token: str) -> Operator:
    """Whose operator token this is. Raises Refusal: 401 ``bad_token``, ``token_revoked``."""
    server = service(request)
    if same_secret(token, server.settings.operator_token):
        return Operator(BOOTSTRAP, Role.ADMINISTRATOR)
    with server.database.read() as connection:
        return who_shows(connection, token)


def operator_of(request: Request) -> Operator:
    """Whom :func:`authorize` let through."""
    found: Operator = request.state.operator
    return found


@contextmanager
def acting(request: Request, action: Action, subject: str, note: str = "") -> Iterator[tuple[Connection, str, float]]:
    """A transaction in which the operator does something, written down at its end: (connection, operator, now)."""
    server, by = service(request), operator_of(request).name
    with server.database.write() as connection:
        now = server.settings.clock()
        yield connection, by, now
        record(connection, by, action, subject, now, note)
