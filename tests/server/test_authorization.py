"""Every route against the authorization table, by everybody whom it knows."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from device_sdk.wire.messages import Problem
from server.app import create_app
from server.web.routes import dashboard as access
from server.web.routes.authorization import TABLE, Caller
from tests.server.parties import ENROLMENT, HEADERS, OPERATOR, Party, initial, serving, settings

VALUES = {"round_id": "r1", "stage": "keys", "version": "0", "base": "base-1", "name": "timestamp.json"}
VALUES |= {"device_id": "d"}
REFUSALS = {"bad_token", "token_revoked", "role", "no_rule", "unsigned", "unknown_device", "device_revoked"}
REFUSALS |= {"bad_signature"}
"""Codes that keep somebody out; any other answer comes from behind the door."""

STAFF = ("viewer", "operator", "administrator", "revoked operator", "bootstrap")
KINDS = ("nobody", "device", "revoked device", *STAFF)


@dataclass
class World:
    """A server with one of everybody."""

    http: Any
    tokens: dict[str, str]
    parties: dict[str, Party]

    def ask(self, kind: str, method: str, route: str) -> Any:
        path = route.format(**VALUES)
        body = b"{}" if method == "POST" else b""
        headers = {}
        self.http.cookies.clear()
        if kind in self.parties:
            headers = self.parties[kind].headers(method, path, "r1" if "{round_id}" in route else None, body)
        elif kind in self.tokens:
            headers = {"Authorization": f"Bearer {self.tokens[kind]}"}
            self.http.cookies.set(access.COOKIE, self.ticket(kind), path="/dashboard")
        if route == "/v1/enrol":
            body = json.dumps({"token": self.tokens.get(kind, "nothing"), "public_key": "x"}).encode()
        return self.http.request(method, path, content=body, headers=headers, follow_redirects=False)

    def ticket(self, kind: str) -> str:
        own = self.http.app.state.service
        return access.ticket(kind.replace(" ", "-"), own.ticket_key, own.settings.clock())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("walk")) as http:
        tokens = {"bootstrap": OPERATOR, "enrolment": ENROLMENT}
        for kind in STAFF[:-1]:
            wanted = {"name": kind.replace(" ", "-"), "role": kind.split()[-1]}
            made = http.post("/v1/operator/operators", json=wanted, headers=HEADERS)
            assert made.status_code == 201, made.text
            tokens[kind] = made.json()["token"]
        http.post("/v1/operator/operators/revoked-operator/revoke", headers=HEADERS)
        parties = {kind: Party(http).enrol() for kind in ("device", "revoked device")}
        http.post(f"/v1/operator/devices/{parties['revoked device'].id}/revoke", headers=HEADERS)
        yield World(http, tokens, parties)


def expected(caller: Caller, kind: str) -> tuple[int, str] | None:
    """How somebody is kept out; None where they are let through."""
    match caller:
        case Caller.ANYBODY:
            return None
        case Caller.ENROLLING:
            return (401, "bad_token")  # none of them shows an enrolment token
        case Caller.DEVICE:
            return {"device": None, "revoked device": (403, "device_revoked")}.get(kind, (401, "unsigned"))
        case Caller.SIGNED_IN:
            return None if kind in STAFF and kind != "revoked operator" else (303, "/dashboard/sign-in")
    if kind not in STAFF:
        return (401, "bad_token")
    if kind == "revoked operator":
        return (401, "token_revoked")
    order = ["viewer", "operator", "administrator", "bootstrap"]
    return None if order.index(kind) >= order.index(caller) else (403, "role")


def kept_out(answer: Any, caller: Caller) -> tuple[int, str] | None:
    if caller is Caller.SIGNED_IN:
        return (303, answer.headers["location"]) if answer.status_code == 303 else None
    if answer.status_code not in (401, 403) or "json" not in answer.headers["content-type"]:
        return None
    code = Problem.model_validate_json(answer.content).code
    return (answer.status_code, code) if code in REFUSALS else None


def test_the_table_has_every_route_and_nothing_else(world: World) -> None:
    served = [
        (method, context.path) for context in iter_route_contexts(world.http.app.routes) for method in context.methods
    ]
    assert len(served) == len(set(served)) and set(served) == set(TABLE)
    assert all(rule.why for rule in TABLE.values() if rule.who is Caller.ANYBODY), "open doors have a reason"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(row))
def test_everybody_is_answered_as_the_table_says(world: World, row: tuple[str, str]) -> None:
    method, route = row
    for kind in KINDS:
        answer = world.ask(kind, method, route)
        assert answer.status_code != 500, (kind, answer.text)
        assert kept_out(answer, TABLE[row].who) == expected(TABLE[row].who, kind), (kind, answer.text)


def test_an_enrolment_token_opens_that_one_door(world: World) -> None:
    for method, route in TABLE:
        answer = world.http.request(
            method, route.format(**VALUES), headers={"Authorization": f"Bearer {ENROLMENT}"}, follow_redirects=False
        )
        if TABLE[method, route].who in (Caller.VIEWER, Caller.OPERATOR, Caller.ADMINISTRATOR):
            assert answer.status_code == 401
    body = {"token": ENROLMENT, "public_key": Party(world.http).public}
    assert world.http.post("/v1/enrol", json=body).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "BREW"])
def test_other_methods_are_not_served(world: World, method: str) -> None:
    for route in {route for _, route in TABLE} - {route for each, route in TABLE if each == method}:
        assert world.http.request(method, route.format(**VALUES)).status_code == 405, route


def test_a_route_without_a_row_is_refused_to_everybody(tmp_path: Path) -> None:
    app = create_app(settings(tmp_path), initial())
    app.get("/v1/forgotten")(lambda: "called")
    with TestClient(app) as http:
        answer = http.get("/v1/forgotten", headers=HEADERS)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_rule")


def test_who_may_not_send_is_refused_before_the_body_is_read(world: World) -> None:
    app = world.http.app
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    for path, headers in (
        ("/v1/operator/models/x", [(b"authorization", f"Bearer {world.tokens['viewer']}".encode())]),
        ("/v1/operator/rounds", []),
        ("/v1/rounds/r1/deltas", []),
    ):
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        asyncio.run(app(scope | {"scheme": "http", "client": ("127.0.0.1", 1), "root_path": ""}, receive, send))
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [403, 401, 401]
