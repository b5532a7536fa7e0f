"""What an app and its user ask of a device never waits for a server that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_sdk import Accepted, Bundle, CheckInError, Device, DeviceSettings, LearningSettings
from device_sdk.wire.messages import MarginalPlan, RoundOffer
from tests.device_sdk.hostile.server import TOKEN, Hostile, Request, checked_in, plain
from tests.signals import hiss

KEY = bytes(range(32))
SETTINGS = DeviceSettings(learning=LearningSettings(passes=1))
OFFER = RoundOffer(round_id="r1", model_version="any", marginals=MarginalPlan(), closes_in_seconds=60.0)
PROMPT = 4.0
"""Seconds, on a busy machine: of work that takes tenths of one, beside a server that is silent for a minute."""


class Silent:
    """A server that keeps one request waiting until it is told to answer."""

    def __init__(self, bundle: Bundle, path: str) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.server = Hostile(bundle, OFFER)
        self.server.answers[path] = self._wait
        if path.startswith(("/v1/marginals", "/v1/models")):
            changes = {"marginals_version": 7} if "marginals" in path else {"model_version": "newer"}
            self.server.answers["/v1/check-in"] = lambda request, line: line.sendall(
                plain(checked_in(bundle, OFFER, **changes))
            )

    def _wait(self, request: Request, line: socket.socket) -> None:
        self.asked.set()
        self.go_on.wait(60)
        line.sendall(plain(self.server._usual(request)))


class CheckingIn(threading.Thread):
    def __init__(self, device: Device, url: str) -> None:
        super().__init__(daemon=True)
        self._device, self._url = device, url
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._device.check_in(self._url, TOKEN)
        except BaseException as error:
            self.error = error


@pytest.fixture(params=["/v1/enrol", "/v1/check-in", "/v1/rounds/r1/marginals", "/v1/marginals/7", "/v1/models/newer"])
def silent(request: pytest.FixtureRequest, tiny_bundle: Bundle) -> Iterator[Silent]:
    found = Silent(tiny_bundle, request.param)
    yield found
    found.go_on.set()
    found.server.close()


def waiting(device: Device, silent: Silent) -> CheckingIn:
    """A check-in that has come to the request which is not answered."""
    device.agree("marginals", "deltas")
    device.recognize(hiss(1), 16_000)
    thread = CheckingIn(device, silent.server.url)
    thread.start()
    assert silent.asked.wait(30), silent.server.paths()
    return thread


def promptly(call: Callable[[], object], what: str) -> None:
    done: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PROMPT)
    assert not thread.is_alive(), f"{what} waits for the server"
    assert done == [None], done


def test_an_app_goes_on_beside_a_check_in(silent: Silent, tmp_path: Path, tiny_bundle: Bundle) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)
    thread = waiting(device, silent)
    heard = []
    promptly(lambda: heard.append(device.recognize(hiss(2), 16_000)), "recognize")
    promptly(lambda: device.feedback(heard[0], Accepted()), "feedback")
    promptly(device.learn, "learn")
    promptly(lambda: device.agree("words"), "agree")
    promptly(lambda: device.withdraw("marginals"), "withdraw")
    promptly(device.learned, "learned")
    assert thread.is_alive(), "the check-in itself may wait"
    silent.go_on.set()
    thread.join(30)
    device.close()


def test_forget_ends_a_check_in_and_nothing_of_it_is_written(
    silent: Silent, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)
    thread = waiting(device, silent)
    promptly(device.forget, "forget")
    thread.join(PROMPT)
    assert not thread.is_alive(), "the check-in does not end"
    assert isinstance(thread.error, CheckInError) and "forg" in str(thread.error), thread.error
    silent.go_on.set()  # the answer comes too late
    time.sleep(0.2)
    for table in ("identity", "outbox", "marginals", "weights", "downloads", "counts", "aggregation"):
        assert device._store.names(table) == [], table
    assert "due" not in device._store.names("settings")
    assert device.model_version == tiny_bundle.version
    assert device.learned().utterances == 0
    device.close()


def test_close_ends_a_check_in(silent: Silent, tmp_path: Path, tiny_bundle: Bundle) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)
    thread = waiting(device, silent)
    promptly(device.close, "close")
    thread.join(PROMPT)
    assert not thread.is_alive(), "the check-in does not end"
    assert isinstance(thread.error, CheckInError) and "closed" in str(thread.error), thread.error
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as again:
        assert again.learned().utterances == 1


def test_a_device_that_forgot_checks_in_again_as_a_new_one(tmp_path: Path, tiny_bundle: Bundle) -> None:
    silent = Silent(tiny_bundle, "/v1/enrol")
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        thread = waiting(device, silent)
        promptly(device.forget, "forget")
        del silent.server.answers["/v1/enrol"]
        assert device.check_in(silent.server.url, TOKEN).model_version == tiny_bundle.version
        thread.join(PROMPT)
        assert not thread.is_alive()
        keys = {request.body for request in silent.server.heard if request.path == "/v1/enrol"}
        assert len(keys) == 2, "what was forgotten was known by another key"
    silent.go_on.set()
    silent.server.close()
