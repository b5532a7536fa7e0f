"""Devices find back to a server that was lost or restored, and to the time: by themselves, with what they learned."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from device_sdk import Bundle, CheckInError, Client
from device_sdk.checkin import identity
from device_sdk.wire.signing import TIMESTAMP
from tests.device_sdk.checkin.site import Site, taught
from tests.device_sdk.checkin.site import opened as site_opened
from tests.device_sdk.hostile.server import Answer, Hostile, Request, plain
from tests.live import LiveServer, LosesReports
from tests.server.parties import ENROLMENT, HEADERS, Operator
from tests.server.postgres import postgres_server

HOUR, DAY = 3600.0, 86_400.0
opened = partial(site_opened, streams=("marginals",))


def refusing(code: str, ahead: float = 0.0) -> Answer:
    """A refusal by a clock that is so many seconds ahead."""

    def answer(request: Request, line: socket.socket) -> None:
        body = json.dumps({"version": 1, "code": code, "detail": "no"}).encode()
        line.sendall(plain(body, "401 Unauthorized", Date=formatdate(time.time() + ahead, usegmt=True)))

    return answer


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Of a server and of the one in its place; "" is a file in its folder."""
    if request.param == "sqlite":
        yield ["", ""]
        return
    with postgres_server() as first, postgres_server() as second:
        yield [first, second]


def test_devices_come_back_to_a_server_that_lost_all(databases: list[str], tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path / "device", tiny_bundle) as device:
        with LiveServer(tmp_path / "first", tiny_bundle.path, database=databases[0]) as server, httpx.Client() as http:
            lost = Operator(http, server.url).open(marginals={})
            taught(device)
            assert [sent.refused for sent in device.check_in(server.url, ENROLMENT).sent] == [None]
            taught(device, 2)
            Operator(http, server.url).close(lost)
            waits = Operator(http, server.url).open(marginals={})
            line = Client(server.url, transport=LosesReports(), attempts=1)
            with pytest.raises(CheckInError, match="the connection broke"):
                device.check_in(line, ENROLMENT)
            port = urlsplit(server.url).port or 0
        known = identity.load(device._store, server.url)
        with LiveServer(tmp_path / "second", tiny_bundle.path, port, databases[1]) as server, httpx.Client() as http:
            open_ = Operator(http, server.url).open(marginals={})
            report = device.check_in(server.url, ENROLMENT)
            assert [(sent.round_id, sent.refused is None) for sent in report.sent] == [(waits, False), (open_, True)]
            found = identity.load(device._store, server.url)
            assert found is not None and found.public_key == known.public_key
            enrolled = http.get(f"{server.url}/v1/operator/devices", headers=HEADERS).json()
            assert json.dumps(enrolled).count(known.device_id or "?") == 1
            assert device.check_in(server.url).sent == (), "nothing is left, nothing is stuck"
        assert device.learned().utterances == 2 and device.student.steps == 2


def test_a_device_comes_back_to_an_older_backup_without_its_token(tmp_path: Path, tiny_bundle: Bundle) -> None:
    folder = tmp_path / "server"
    with opened(tmp_path / "device", tiny_bundle) as device:
        with LiveServer(folder, tiny_bundle.path) as server:
            port = urlsplit(server.url).port or 0
            server.stop()
        shutil.copytree(folder, tmp_path / "backup")
        with LiveServer(folder, tiny_bundle.path, port) as server:
            device.check_in(server.url, ENROLMENT)
            device.check_in(server.url)
            server.stop()
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        with LiveServer(folder, tiny_bundle.path, port) as server:
            assert device.check_in(server.url).model_version == tiny_bundle.version


def test_a_revoked_device_does_not_come_back(server: Site, tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path / "device", tiny_bundle) as device:
        device.check_in(server.url, ENROLMENT)
        who = identity.load(device._store, server.url)
        server.operator.post(f"devices/{who.device_id}/revoke")
        for _ in range(2):
            with pytest.raises(CheckInError, match="device_revoked"):
                device.check_in(server.url, ENROLMENT)
        assert identity.load(device._store, server.url) == who, "it makes no other key for itself"


def test_a_server_that_never_knows_a_device_is_not_asked_for_ever(tmp_path: Path, tiny_bundle: Bundle) -> None:
    answers = {"/v1/check-in": refusing("unknown_device")}
    with opened(tmp_path, tiny_bundle) as device, Hostile(tiny_bundle, answers=answers) as server:
        with pytest.raises(CheckInError, match="unknown_device"):
            device.check_in(server.url, ENROLMENT)
        assert 2 <= server.paths().count("/v1/check-in") <= 3 and server.paths().count("/v1/enrol") <= 2


def test_a_device_that_holds_no_token_says_what_it_needs(server: Site, tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path / "device", tiny_bundle) as device:
        identity.keep_id(device._store, identity.create(device._store, server.url), "0" * 32)
        with pytest.raises(CheckInError, match=r"unknown_device.*enrolment token"):
            device.check_in(server.url)
        assert device.check_in(server.url, ENROLMENT).model_version == tiny_bundle.version


@pytest.mark.parametrize("wrong", [3 * HOUR, -3 * HOUR, 6 * DAY, -6 * DAY])
def test_a_clock_that_is_off_is_corrected_by_the_server_or_named(wrong, tmp_path, tiny_bundle, monkeypatch) -> None:
    """The server is a process of its own, whose time nobody changes."""
    now = time.time
    with (
        LiveServer(tmp_path / "server", tiny_bundle.path) as server,
        opened(tmp_path / "device", tiny_bundle) as device,
        Client(server.url) as client,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now() + wrong)
            assert device.check_in(client, ENROLMENT).model_version == tiny_bundle.version
            sent = client.bytes_up
            device.check_in(client)
            assert client.bytes_up - sent < 400, "it is remembered for this server: one request, not two"
        device.check_in(client)  # somebody has set the clock meanwhile
        with monkeypatch.context() as patch, pytest.raises(CheckInError, match=r"clock.*set it"):
            patch.setattr(time, "time", lambda: now() - 400 * DAY)
            device.check_in(client)


@pytest.mark.parametrize("ahead", [6 * DAY, 8 * DAY, 4000 * DAY, -8 * DAY])
def test_nobody_makes_a_device_sign_for_the_far_future(ahead: float, tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path, tiny_bundle) as device, Hostile(tiny_bundle) as liar, Hostile(tiny_bundle) as other:
        liar.answers["/v1/check-in"] = refusing("stale_time", ahead)
        for _ in range(3):
            with pytest.raises(CheckInError):
                device.check_in(liar.url, ENROLMENT)
        stamps = [int(each.headers[TIMESTAMP.lower()]) for each in liar.heard if each.path == "/v1/check-in"]
        assert 3 <= len(stamps) <= 6 and all(abs(stamp - time.time()) < 7 * DAY + 60 for stamp in stamps)
        device.check_in(other.url, ENROLMENT)
        stamp = int(other.heard[-1].headers[TIMESTAMP.lower()])
        assert abs(stamp - time.time()) < 60, "what one server says of the time is for that server"
