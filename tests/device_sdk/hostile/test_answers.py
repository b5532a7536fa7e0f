"""Answers that would fill a device's memory, take its time for ever or lead it elsewhere."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_sdk import Bundle, CheckInError, Client, Device, DeviceSettings
from device_sdk.checkin import identity
from device_sdk.state import outbox
from tests.device_sdk.devices import KEY, tell
from tests.device_sdk.hostile.server import OFFER, TOKEN, Answer, Call, Hostile, Request, bomb, drip, newer, plain

CHECK_IN = """
import resource, sys
from pathlib import Path
import numpy as np
from device_sdk import Bundle, CheckInError, Corrected, Device
with Device.open(sys.argv[1], bytes(range(32)), Bundle.open(sys.argv[2])) as device:
    device.agree("marginals")
    for seed in range(2):
        heard = device.recognize((np.random.default_rng(seed).normal(size=9600) * 0.05).astype(np.float32), 16_000)
        device.feedback(heard, Corrected("turn on the light"))
    try:
        device.check_in("http://127.0.0.1:9", "token")  # loads what a check-in needs
    except CheckInError:
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = str(device.check_in(sys.argv[3], "token"))
    except CheckInError as error:
        said = str(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(said)"""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/enrol", "200 OK"),
        ("/v1/enrol", "422 Unprocessable Entity"),
        ("/v1/check-in", "200 OK"),
        ("/v1/rounds/r1/marginals", "200 OK"),
        ("/v1/marginals/7", "200 OK"),
        ("/v1/models/newer", "200 OK"),
    ],
)
def test_an_answer_is_never_unpacked_into_memory(path: str, status: str, tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Hostile(tiny_bundle, OFFER) as server:
        server.answers = {**newer(tiny_bundle, path), path: bomb(100, status)}
        command = [sys.executable, "-c", CHECK_IN, str(tmp_path / "state"), str(tiny_bundle.path), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert path in [each[: len(path)] for each in server.paths()]
    grown, said = done.stdout.split("\n")[:2]
    assert int(grown) < 40_000, f"{grown} kB more memory"
    assert server.url in said, said


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/check-in"])
def test_an_answer_longer_than_it_says_or_is_useful_is_left(path: str, tmp_path: Path, tiny_bundle: Bundle) -> None:
    sent = [0]

    def endless(request: Request, line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        for _ in range(500):
            line.sendall(b" " * (1 << 16))
            sent[0] += 1 << 16

    with Device.open(tmp_path, KEY, tiny_bundle) as device, Hostile(tiny_bundle, answers={path: endless}) as server:
        with pytest.raises(CheckInError, match="found more than"):
            device.check_in(server.url, TOKEN)
        assert server.paths().count(path) == 1, "it is not asked for again"
    assert sent[0] < 8 << 20


def _swallow(request: Request, line: socket.socket) -> None:
    time.sleep(90)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/check-in", "/v1/rounds/r1/marginals", "/v1/marginals/7"])
@pytest.mark.parametrize(
    "answer",
    [
        drip(b" ", head=HEAD),
        drip(b"X-Filler: and more of it\r\n", head=b"HTTP/1.1 200 OK\r\n"),
        drip(b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        drip(b"1\r\n \r\n", head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        _swallow,
    ],
    ids=["body", "head", "continue", "chunks", "silence"],
)
def test_a_byte_now_and_then_ends_with_its_time(path: str, answer: Answer, tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device, Hostile(tiny_bundle, OFFER) as server:
        device.agree("marginals")
        if path == "/v1/rounds/r1/marginals":
            tell(device)
        server.answers = {**newer(tiny_bundle, path), path: answer}
        client = Client(server.url, timeout=0.7, attempts=2, pause=lambda seconds: None)
        client.slowest = 1 << 20
        call = Call(lambda: device.check_in(client, TOKEN))
        assert call.over(9.0), "the check-in goes on for as long as the server likes"
        assert path in server.paths()
        assert isinstance(call.error, CheckInError), call.error


def _busy(request: Request, line: socket.socket) -> None:
    time.sleep(0.3)
    line.sendall(plain(b"", "503 Service Unavailable", Retry_After="1"))


@pytest.mark.parametrize("answer", [_swallow, _busy])
def test_a_check_in_as_a_whole_has_its_time(answer: Answer, tmp_path: Path, tiny_bundle: Bundle) -> None:
    """Every request for itself might take longer, and be tried again."""
    settings = DeviceSettings(check_in_seconds=1.5)
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device, Hostile(tiny_bundle) as server:
        server.answers["/v1/check-in"] = answer
        call = Call(lambda: device.check_in(server.url, TOKEN))
        assert call.over(6.0)
        assert isinstance(call.error, CheckInError) and "not done after 1.5 s" in str(call.error), call.error
        assert device.due_in_seconds(server.url) > 0, "it counts as a failure, after which one waits longer"


def test_a_server_that_never_reads_ends_with_the_time_of_the_exchange(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """What is sent waits on the line too: here a report longer than all buffers on it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Device.open(tmp_path, KEY, tiny_bundle) as device:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        who = identity.keep_id(device._store, identity.create(device._store, url), "device-1")
        outbox.keep(device._store, outbox.Outgoing("a" * 32, who.server, "deltas", "r1", bytes(32 << 20)))
        client = Client(url, timeout=0.7, attempts=1)
        client.slowest = 1 << 30  # bytes a second, which an upload's time is reckoned with
        call = Call(lambda: device.check_in(client))
        assert call.over(9.0) and isinstance(call.error, CheckInError)
        assert len(list(outbox.waiting(device._store, url))) == 1


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:9/v1/check-in", "https://elsewhere.test/", "//elsewhere.test/", "/v1/other"]
)
@pytest.mark.parametrize("path", ["/v1/check-in", "/v1/models/newer"])
def test_nothing_leads_a_device_to_another_place(place: str, path: str, tmp_path: Path, tiny_bundle: Bundle) -> None:
    def elsewhere(request: Request, line: socket.socket) -> None:
        line.sendall(plain(b"", "307 Temporary Redirect", Location=place))

    with Device.open(tmp_path, KEY, tiny_bundle) as device, Hostile(tiny_bundle) as server:
        server.answers = {**newer(tiny_bundle, path), path: elsewhere}
        with pytest.raises(CheckInError, match="status 307"):
            device.check_in(server.url, TOKEN)
        assert "/v1/other" not in server.paths()


def test_the_line_of_a_whole_answer_is_used_again(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device, Hostile(tiny_bundle) as server:
        with Client(server.url) as client:
            for _ in range(3):
                assert device.check_in(client, TOKEN).round_id is None
        assert all(request.headers["accept-encoding"] == "identity" for request in server.heard)
        assert json.loads(server.heard[-1].body)["device_id"] == "device-1"
