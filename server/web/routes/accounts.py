"""The routes of who may operate, who may enrol, and what operators did."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy import Connection, Row

from server.devices.enrolment import (
    add_enrolment_token,
    count_devices,
    list_devices,
    list_enrolment_tokens,
    revoke,
    revoke_enrolment_token,
)
from server.operators import accounts, messages
from server.operators.accounts import list_actions, record
from server.web.bodies import parse, plain, service
from server.web.operations import for_operators
from server.web.routes.authorization import operator_of
from server.web.routes.operators import Small

__all__ = ["router"]

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
    server, wanted = service(request), parse(messages.OperatorRequest, body)
    now, by = server.settings.clock(), operator_of(request).name
    with server.database.write() as connection:
        token = accounts.add_operator(connection, wanted.name, wanted.role, by, now)
        record(connection, by, "operator.add", wanted.name, now, wanted.role)
        row = accounts.find_operator(connection, wanted.name)
        assert row is not None
        return plain(_without(row, "token_sha256") | {"token": token}, 201)


@router.post("/operators/{name}/revoke", **for_operators(messages.OperatorEntry, "404 unknown_operator"))
def post_revoke_operator(request: Request, name: str) -> Response:
    """Refuse an operator's token, and the web pages opened with it, from now on."""
    server = service(request)
    now, by = server.settings.clock(), operator_of(request).name
    with server.database.write() as connection:
        accounts.revoke_operator(connection, name, now)
        record(connection, by, "operator.revoke", name, now)
        row = accounts.find_operator(connection, name)
        assert row is not None
        return plain(_without(row, "token_sha256"))


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
    server, wanted = service(request), parse(messages.EnrolmentTokenRequest, body)
    now, by = server.settings.clock(), operator_of(request).name
    expires_at = None if wanted.seconds is None else now + wanted.seconds
    with server.database.write() as connection:
        token = add_enrolment_token(connection, wanted.name, by, now, uses=wanted.uses, expires_at=expires_at)
        record(connection, by, "enrolment.add", wanted.name, now)
        return plain(_named(connection, wanted.name) | {"token": token}, 201)


@router.post(
    "/enrolment-tokens/{name}/revoke", **for_operators(messages.EnrolmentTokenEntry, "404 unknown_enrolment_token")
)
def post_revoke_enrolment_token(request: Request, name: str) -> Response:
    """Let nobody in with a token any more. Devices that it let in stay."""
    server = service(request)
    now, by = server.settings.clock(), operator_of(request).name
    with server.database.write() as connection:
        revoke_enrolment_token(connection, name, now)
        record(connection, by, "enrolment.revoke", name, now)
        return plain(_named(connection, name))


@router.get("/devices", **for_operators(messages.Devices))
def get_devices(request: Request, after: Annotated[str, Query(max_length=64)] = "", limit: Limit = 100) -> Response:
    """Enrolled devices by id, a page at a time."""
    with service(request).database.read() as connection:
        found = [_device(row) for row in list_devices(connection, after, limit)]
        return plain({"count": count_devices(connection), "devices": found})


@router.post("/devices/{device_id}/revoke", **for_operators(messages.DeviceRevoked, "404 unknown_device"))
def post_revoke_device(request: Request, device_id: str) -> Response:
    """Refuse everything that a device sends from now on. What it was counted for stays counted."""
    server = service(request)
    now, by = server.settings.clock(), operator_of(request).name
    with server.database.write() as connection:
        revoke(connection, device_id, now)
        record(connection, by, "device.revoke", device_id, now)
    return plain({"device_id": device_id, "revoked": True})


@router.get("/actions", **for_operators(messages.Actions))
def get_actions(request: Request, limit: Limit = 100) -> Response:
    """What operators did, the newest first."""
    with service(request).database.read() as connection:
        return plain({"actions": [_without(row, "id") for row in list_actions(connection, limit)]})


def _named(connection: Connection, name: str) -> dict[str, Any]:
    row = next(row for row in list_enrolment_tokens(connection) if row.name == name)
    return _without(row, "token_sha256")


def _device(row: Row[Any]) -> dict[str, Any]:
    found = _without(row, "public_key")
    return {"device_id": found.pop("id"), **found}


def _without(row: Row[Any], *hidden: str) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in hidden}
