"""What an app and its user ask of a device never waits for a server that does not answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_sdk import Accepted, Bundle, CheckInError, Device, DeviceSettings, LearningSettings
from tests.device_sdk.devices import KEY, tell
from tests.device_sdk.hostile.server import OFFER, TOKEN, Call, Hostile, Request, newer, plain
from tests.signals import hiss

SETTINGS = DeviceSettings(learning=LearningSettings(passes=1, replays=0))
PROMPT = 4.0
"""Seconds, on a busy machine: of work that takes tenths of one, beside a server that is silent for a minute."""


class Silent:
    """A server that keeps one request waiting until it is told to answer."""

    def __init__(self, bundle: Bundle, path: str) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.server = Hostile(bundle, OFFER, {**newer(bundle, path), path: self._wait})

    def _wait(self, request: Request, line: socket.socket) -> None:
        self.asked.set()
        self.go_on.wait(60)
        line.sendall(plain(self.server._usual(request)))


@pytest.fixture(params=["/v1/enrol", "/v1/check-in", "/v1/rounds/r1/marginals", "/v1/marginals/7", "/v1/models/newer"])
def silent(request: pytest.FixtureRequest, tiny_bundle: Bundle) -> Iterator[Silent]:
    found = Silent(tiny_bundle, request.param)
    yield found
    found.go_on.set()
    found.server.close()


def waiting(device: Device, silent: Silent) -> Call:
    """A check-in that has come to the request which is not answered."""
    device.agree("marginals", "deltas")
    tell(device)
    call = Call(lambda: device.check_in(silent.server.url, TOKEN))
    assert silent.asked.wait(30), silent.server.paths()
    return call


def promptly(call: Callable[[], object], what: str) -> None:
    done = Call(call)
    assert done.over(PROMPT), f"{what} waits for the server"
    assert done.error is None


def test_an_app_goes_on_beside_a_check_in(silent: Silent, tmp_path: Path, tiny_bundle: Bundle) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)
    call = waiting(device, silent)
    heard = []
    promptly(lambda: heard.append(device.recognize(hiss(2), 16_000)), "recognize")
    promptly(lambda: device.feedback(heard[0], Accepted()), "feedback")
    promptly(device.learn, "learn")
    promptly(lambda: device.agree("words"), "agree")
    promptly(lambda: device.withdraw("marginals"), "withdraw")
    promptly(device.learned, "learned")
    assert call.is_alive(), "the check-in itself may wait"
    silent.go_on.set()
    call.join(30)
    device.close()


@pytest.mark.parametrize(("what", "said"), [("forget", "forg"), ("close", "closed")])
def test_what_ends_a_check_in(silent: Silent, tmp_path: Path, tiny_bundle: Bundle, what: str, said: str) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)
    call = waiting(device, silent)
    promptly(getattr(device, what), what)
    assert call.over(PROMPT), "the check-in does not end"
    assert isinstance(call.error, CheckInError) and said in str(call.error), call.error
    if what == "close":
        with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as again:
            assert again.learned().utterances == 1
        return
    silent.go_on.set()  # the answer comes too late
    time.sleep(0.2)
    for table in ("identity", "outbox", "marginals", "weights", "downloads", "counts", "aggregation"):
        assert device._store.names(table) == [], table
    assert "due" not in device._store.names("settings")
    assert (device.model_version, device.learned().utterances) == (tiny_bundle.version, 0)
    device.close()


def test_a_device_that_forgot_checks_in_again_as_a_new_one(tmp_path: Path, tiny_bundle: Bundle) -> None:
    silent = Silent(tiny_bundle, "/v1/enrol")
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        call = waiting(device, silent)
        promptly(device.forget, "forget")
        del silent.server.answers["/v1/enrol"]
        assert device.check_in(silent.server.url, TOKEN).model_version == tiny_bundle.version and call.over(PROMPT)
        keys = {request.body for request in silent.server.heard if request.path == "/v1/enrol"}
        assert len(keys) == 2, "what was forgotten was known by another key"
    silent.go_on.set()
    silent.server.close()
