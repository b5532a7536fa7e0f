"""Downloads by a real device from a real server, over a line that breaks, and by one that was killed."""

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_sdk import Bundle, CheckInError, CheckInReport, Device
from device_sdk.checkin.client import Client, Partial
from tests.device_sdk.checkin.site import KEY
from tests.device_sdk.checkin.updates.fleet import Fleet, running
from tests.device_sdk.state.audit import findings
from tests.live import CuttingLine
from tests.server.parties import ENROLMENT


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Iterator[Fleet]:
    with running(tmp_path_factory.mktemp("fleet"), tiny_bundle) as found:
        yield found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model is no larger than one part would be."""
    monkeypatch.setattr("device_sdk.checkin.client.PART", 4096)


@pytest.fixture(params=["signed", "plain"])
def device(request: pytest.FixtureRequest, tmp_path: Path, tiny_bundle: Bundle, fleet: Fleet) -> Iterator[Device]:
    root = fleet.root if request.param == "signed" else None
    with Device.open(tmp_path / "state", KEY, tiny_bundle, trusted_root=root) as found:
        check_in(found, fleet.url)
        yield found
    assert findings(tmp_path / "state", KEY, tiny_bundle) == []


def check_in(device: Device, url: str, **options: Any) -> CheckInReport:
    with Client(url, pause=lambda seconds: None, **options) as client:
        return device.check_in(client, ENROLMENT)


def published(fleet: Fleet, name: str) -> tuple[str, bytes]:
    """A fresh version, and the exact bytes that the server has of it."""
    version = f"{name}-{time.monotonic_ns()}"
    fleet.publish(version, seed=len(fleet.line.heard) + int(time.monotonic_ns() % 1000))
    return version, fleet.get(f"/v1/models/{version}")


def installed(device: Device) -> bytes | None:
    return device._model_state.store.get("weights", "published")


def test_a_difference_is_taken_and_exact(device: Device, fleet: Fleet) -> None:
    version, content = published(fleet, "short")
    before = device.model_version
    with Client(fleet.url) as client:
        client.download(f"/v1/models/{version}/from/{before}", len(content), 60.0)
        size = client.bytes_down
    report = check_in(device, fleet.url)
    assert (report.new_model, device.model_version) == (True, version) and installed(device) == content
    assert size < 0.8 * len(content)
    signed = device._trusted_root is not None
    assert report.bytes_down < size + (12_000 if signed else 4096) and Partial(device._model_state.store).path is None


@pytest.mark.parametrize("most", [20_000, 60_000])
def test_a_line_that_breaks_is_gone_on_with(device: Device, fleet: Fleet, most: int) -> None:
    version, content = published(fleet, "broken")
    with CuttingLine(fleet.url, most) as line:
        report = check_in(device, line.url)
        assert line.broken >= 2
    assert (report.new_model, device.model_version) == (True, version) and installed(device) == content
    assert report.bytes_down < len(content)


def test_a_later_check_in_goes_on_and_a_killed_device_too(device: Device, fleet: Fleet, tmp_path, tiny_bundle) -> None:
    _, content = published(fleet, "later")
    before, root = device.model_version, device._trusted_root
    with CuttingLine(fleet.url, 30_000) as line, suppress(CheckInError):
        assert check_in(device, line.url, attempts=1).updates_refused
    assert device.model_version == before
    store = device._model_state.store
    held = sum(len(store.get("downloads", name) or b"") for name in store.names("downloads") if name != "head")
    assert held >= 20_000
    shutil.copytree(tmp_path / "state", tmp_path / "killed")  # the files of a process that nobody closed
    with Device.open(tmp_path / "killed", KEY, tiny_bundle, trusted_root=root) as killed:
        report = check_in(killed, fleet.url)
        assert (report.new_model, installed(killed)) == (True, content) and report.bytes_down < len(content) - held
    assert (check_in(device, fleet.url).new_model, installed(device)) == (True, content)
    assert store.names("downloads") == []


def test_a_model_that_was_published_meanwhile_begins_anew(device: Device, fleet: Fleet) -> None:
    published(fleet, "old")
    with CuttingLine(fleet.url, 30_000) as line, suppress(CheckInError):
        check_in(device, line.url, attempts=1)
    assert Partial(device._model_state.store).path is not None
    version, content = published(fleet, "new")
    assert check_in(device, fleet.url).model_version == version and installed(device) == content


class Tampering(httpx.HTTPTransport):
    """Answers requests for the difference and for the whole by these functions, where they give an answer."""

    def __init__(self, difference: Any, whole: Any = lambda request: None) -> None:
        super().__init__()
        self._answers = {"difference": difference, "whole": whole}
        self.asked: list[tuple[str, str | None]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/v1/models/" not in request.url.path:
            return super().handle_request(request)
        kind = "difference" if "/from/" in request.url.path else "whole"
        self.asked.append((kind, request.headers.get("range")))
        return self._answers[kind](request) or super().handle_request(request)


@pytest.mark.parametrize("device", ["plain"], indirect=True)
@pytest.mark.parametrize(
    "answer",
    [
        lambda request: httpx.Response(404, json={"version": 1, "code": "no_such_route", "detail": "older"}),
        lambda request: httpx.Response(410, text="gone"),
        lambda request: httpx.Response(200, content=b"nonsense"),
        lambda request: httpx.Response(200, content=b"idiolect difference 1\n" + bytes(100)),
    ],
    ids=["an older server", "gone", "nonsense", "damaged"],
)
def test_without_a_good_difference_all_of_it_is_taken(device: Device, fleet: Fleet, answer: Any) -> None:
    version, content = published(fleet, "whole")
    line = Tampering(answer)
    assert check_in(device, fleet.url, transport=line).model_version == version
    assert installed(device) == content and [kind for kind, _ in line.asked] == ["difference", "whole"]


def half_then(rest: Any) -> Any:
    """The first answer breaks off in the middle; the others are as ``rest`` makes them of the file's bytes."""
    seen: list[httpx.Request] = []

    def broken(content: bytes) -> Iterator[bytes]:
        yield content
        raise httpx.ReadError("the line broke")

    def answer(request: httpx.Request) -> httpx.Response | None:
        whole = httpx.get(request.url)
        content, etag = whole.content, whole.headers["etag"]
        seen.append(request)
        if len(seen) > 1:
            return rest(content, etag, request)
        return httpx.Response(200, headers={"ETag": etag}, content=broken(content[:30_000]))

    return answer


def ranged(content: bytes, etag: str, start: int, named: int | None = None) -> httpx.Response:
    first = start if named is None else named
    where = f"bytes {first}-{len(content) - 1}/{len(content)}"
    return httpx.Response(206, headers={"ETag": etag, "Content-Range": where}, content=content[start:])


@pytest.mark.parametrize("device", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("rest", "good"),
    [
        (lambda content, etag, request: ranged(content, etag, 30_000), True),
        (lambda content, etag, request: httpx.Response(200, headers={"ETag": etag}, content=content), True),
        (lambda content, etag, request: None, True),  # the server's own answer
        (lambda content, etag, request: httpx.Response(416) if "range" in request.headers else None, True),
        (lambda content, etag, request: ranged(content, etag, 20_000) if "range" in request.headers else None, True),
        (lambda content, etag, request: ranged(content, '"x"', 30_000) if "range" in request.headers else None, True),
        (lambda content, etag, request: httpx.Response(206, content=content[30_000:]), False),
        (lambda content, etag, request: ranged(content, etag, 20_000, named=30_000), False),
    ],
    ids=["goes on", "all of it", "server", "416", "other range", "other file", "no range named", "range that lies"],
)
def test_the_rest_of_a_file(device: Device, fleet: Fleet, rest: Any, good: bool) -> None:
    """Whatever comes, only the file that was wanted is installed."""
    version, content = published(fleet, "rest")
    before = device.model_version
    line = Tampering(lambda request: httpx.Response(404, text=""), half_then(rest))
    with nullcontext() if good else pytest.raises(CheckInError, match=r"no usable answer|sha256"):
        assert check_in(device, fleet.url, transport=line).new_model
    assert ("whole", "bytes=30000-") in line.asked and device.model_version == (version if good else before)
    assert check_in(device, fleet.url).model_version == version and installed(device) == content
