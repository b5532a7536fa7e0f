"""Tokens that let devices enrol: so many, so long, until they are revoked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from server.settings import Rates
from server.storage.schema import devices
from tests.server import parties
from tests.server.hostile.process import HostileServer
from tests.server.parties import ENROLMENT, HEADERS, OFTEN, Operator, Party, initial, serving


@dataclass
class Gate:
    """A server whose clock the test sets."""

    http: Any
    operator: Operator
    now: list[float]

    def token(self, name: str, **wanted: Any) -> str:
        return str(self.operator.post("enrolment-tokens", json={"name": name, **wanted})["token"])

    def enrol(self, token: str, party: Party | None = None) -> tuple[int, str]:
        party = party or Party(self.http)
        answer = self.http.request("POST", "/v1/enrol", json={"token": token, "public_key": party.public})
        found = answer.json()
        return answer.status_code, found.get("code") or found["device_id"]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    now = [1_000_000.0]
    with serving(tmp_path, clock=lambda: now[0]) as http:
        yield Gate(http, Operator(http), now)


def test_so_many_devices_and_no_more(gate: Gate) -> None:
    token = gate.token("two", uses=2)
    first = Party(gate.http)
    found = gate.enrol(token, first)
    assert found[0] == 200
    assert gate.enrol(token, first) == found, "again after a lost answer: nothing is used up"
    assert gate.enrol(token)[0] == 200 and gate.enrol(token) == (403, "token_used_up")
    assert gate.enrol(token, first) == found, "who is in stays in"
    entry = gate.operator.get("enrolment-tokens")["enrolment_tokens"][0]
    assert (entry["name"], entry["uses"], entry["used"]) == ("two", 2, 2) and token not in str(entry)
    listed = gate.operator.get("devices")
    assert listed["count"] == 2 and {device["enrolment_token"] for device in listed["devices"]} == {"two"}


def test_so_long_and_until_it_is_revoked(gate: Gate) -> None:
    token = gate.token("hour", seconds=3600.0)
    gate.now[0] += 3599.0
    assert gate.enrol(token)[0] == 200
    gate.now[0] += 1.0
    assert gate.enrol(token) == (403, "token_expired")
    endless, party = gate.token("endless", uses=None), Party(gate.http)
    found = gate.enrol(endless, party)
    gate.operator.post("enrolment-tokens/endless/revoke")
    assert gate.enrol(endless) == (403, "token_revoked") and gate.enrol(endless, party) == found
    party.id = found[1]
    assert party.post("/v1/check-in", b"{}", at=gate.now[0]).status_code == 422, "known, if not understood"
    for path, status in (("enrolment-tokens", 409), ("enrolment-tokens/none/revoke", 404)):
        assert gate.http.post(f"/v1/operator/{path}", json={"name": "endless"}, headers=HEADERS).status_code == status


def test_many_at_once_use_a_token_no_more_often_than_it_may(gate: Gate) -> None:
    token = gate.token("three", uses=3)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: gate.enrol(token)[0], range(12)))
    assert sorted(found) == [200] * 3 + [403] * 9


def test_devices_come_a_page_at_a_time(gate: Gate) -> None:
    ids = sorted(Party(gate.http).enrol().id for _ in range(5))
    seen: list[str] = []
    while page := gate.operator.get(f"devices?limit=2&after={seen[-1] if seen else ''}")["devices"]:
        seen += [device["device_id"] for device in page]
    assert seen == ids


def test_the_servers_own_token_has_a_number_of_uses(gate: Gate) -> None:
    party = Party(gate.http)
    assert gate.enrol(ENROLMENT, party)[0] == 200
    with gate.http.app.state.service.database.write() as connection:
        keys = [{"id": f"made-up-{number}", "public_key": number.to_bytes(32, "big")} for number in range(9998)]
        connection.execute(insert(devices), [key | {"enrolled_at": gate.now[0]} for key in keys])
    last = gate.enrol(ENROLMENT)
    assert last[0] == 200 and gate.enrol(ENROLMENT) == (403, "token_used_up")
    assert gate.enrol(ENROLMENT, party)[0] == 200, "who is in stays in"
    gate.operator.post(f"devices/{last[1]}/revoke")
    assert gate.enrol(ENROLMENT) == (403, "token_used_up"), "a revoked device leaves no place"
    assert gate.enrol(gate.token("more"))[0] == 200


def serve(folder: str) -> None:
    """What the server's process runs, with the rate of enrolments that every server has."""
    parties.serve(folder, initial(), rates=Rates(OFTEN, OFTEN))


def test_one_address_enrols_so_many_and_then_waits(tmp_path: Path) -> None:
    """Behind this machine's proxy. Others, and this machine's own programs, are let in all the while."""
    with HostileServer(tmp_path, f"{__name__}:serve") as server, httpx.Client(base_url=server.url, timeout=60) as http:

        def enrol(address: str | None, token: str = ENROLMENT) -> httpx.Response:
            headers = {} if address is None else {"X-Forwarded-For": address}
            return http.post("/v1/enrol", json={"token": token, "public_key": Party(http).public}, headers=headers)

        answers = [enrol("203.0.113.5", ENROLMENT if number % 2 else "guessed-token") for number in range(140)]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses[:100]) == {200, 401} and 429 in statuses
        first = answers[statuses.index(429)]
        assert first.json()["code"] == "too_many_requests" and int(first.headers["retry-after"]) >= 1
        assert enrol("203.0.113.6").status_code == 200 and enrol("2001:db8::1").status_code == 200
        assert {enrol(None).status_code for _ in range(120)} == {200}
