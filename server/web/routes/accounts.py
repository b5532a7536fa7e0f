"""The routes of who may operate, who may enrol, and what operators did."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy import Row

from server.devices.enrolment import (
    add_enrolment_token,
    count_devices,
    list_devices,
    list_enrolment_tokens,
    revoke,
    revoke_enrolment_token,
)
from server.operators import accounts, messages
from server.operators.accounts import list_actions
from server.web.bodies import parse, plain, service
from server.web.operations import for_operators
from server.web.routes.authorization import acting, operator_of
from server.web.routes.operators import Small

router = APIRouter(prefix="/v1/operator")

Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/me", **for_operators(messages.Me))
def get_me(request: Request) -> Response:
    """Whose token this is, and what it may do."""
    found = operator_of(request)
    return plain({"name": found.name, "role": found.role})


@router.get("/operators", **for_operators(messages.Operators))
def get_operators(request: Request) -> Response:
    """Named operators, those who were revoked too."""
    with service(request).database.read() as connection:
        return plain({"operators": [_without(row, "token_sha256") for row in accounts.list_operators(connection)]})


@router.post(
    "/operators", **for_operators(messages.OperatorMade, "409 name_taken", takes=messages.OperatorRequest, status=201)
)
def post_operator(request: Request, body: Small) -> Response:
    """Add an operator. The token is in the answer and nowhere else."""
    wanted = parse(messages.OperatorRequest, body)
    with acting(request, "operator.add", wanted.name, wanted.role) as (connection, by, now):
        token = accounts.add_operator(connection, wanted.name, wanted.role, by, now)
        return plain(_named(accounts.list_operators(connection), wanted.name) | {"token": token}, 201)


@router.post("/operators/{name}/revoke", **for_operators(messages.OperatorEntry, "404 unknown_operator"))
def post_revoke_operator(request: Request, name: str) -> Response:
    """Refuse an operator's token, and the web pages opened with it, from now on."""
    with acting(request, "operator.revoke", name) as (connection, _, now):
        accounts.revoke_operator(connection, name, now)
        return plain(_named(accounts.list_operators(connection), name))


@router.get("/enrolment-tokens", **for_operators(messages.EnrolmentTokens))
def get_enrolment_tokens(request: Request) -> Response:
    """Tokens that let devices enrol, the newest first; the server's own is not among them."""
    with service(request).database.read() as connection:
        return plain({"enrolment_tokens": [_without(row, "token_sha256") for row in list_enrolment_tokens(connection)]})


@router.post(
    "/enrolment-tokens",
    **for_operators(messages.EnrolmentTokenMade, "409 name_taken", takes=messages.EnrolmentTokenRequest, status=201),
)
def post_enrolment_token(request: Request, body: Small) -> Response:
    """Make a token that lets devices enrol. It is in the answer and nowhere else."""
    wanted = parse(messages.EnrolmentTokenRequest, body)
    with acting(request, "enrolment.add", wanted.name) as (connection, by, now):
        expires_at = None if wanted.seconds is None else now + wanted.seconds
        token = add_enrolment_token(connection, wanted.name, by, now, uses=wanted.uses, expires_at=expires_at)
        return plain(_named(list_enrolment_tokens(connection), wanted.name) | {"token": token}, 201)


@router.post(
    "/enrolment-tokens/{name}/revoke", **for_operators(messages.EnrolmentTokenEntry, "404 unknown_enrolment_token")
)
def post_revoke_enrolment_token(request: Request, name: str) -> Response:
    """Let nobody in with a token any more. Devices that it let in stay."""
    with acting(request, "enrolment.revoke", name) as (connection, _, now):
        revoke_enrolment_token(connection, name, now)
        return plain(_named(list_enrolment_tokens(connection), name))


@router.get("/devices", **for_operators(messages.Devices))
def get_devices(request: Request, after: Annotated[str, Query(max_length=64)] = "", limit: Limit = 100) -> Response:
    """Enrolled devices by id, a page at a time."""
    with service(request).database.read() as connection:
        found = [_without(row, "public_key") for row in list_devices(connection, after, limit)]
        listed = [{"device_id": entry.pop("id"), **entry} for entry in found]
        return plain({"count": count_devices(connection), "devices": listed})


@router.post("/devices/{device_id}/revoke", **for_operators(messages.DeviceRevoked, "404 unknown_device"))
def post_revoke_device(request: Request, device_id: str) -> Response:
    """Refuse everything that a device sends from now on. What it was counted for stays counted."""
    with acting(request, "device.revoke", device_id) as (connection, _, now):
        revoke(connection, device_id, now)
    return plain({"device_id": device_id, "revoked": True})


@router.get("/actions", **for_operators(messages.Actions))
def get_actions(request: Request, limit: Limit = 100) -> Response:
    """What operators did, the newest first."""
    with service(request).database.read() as connection:
        return plain({"actions": [_without(row, "id") for row in list_actions(connection, limit)]})


def _named(rows: list[Row[Any]], name: str) -> dict[str, Any]:
    return next(_without(row, "token_sha256") for row in rows if row.name == name)


def _without(row: Row[Any], hidden: str) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != hidden}
