"""Devices in a round of secure aggregation against the real server on a real port."""

import itertools
import json
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk import Bundle, CheckInError, CheckInReport, Client, Device, StateError
from device_sdk.checkin import aggregation, identity
from device_sdk.privacy.contributions import share_variance
from device_sdk.secure_aggregation import participant
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from tests.device_sdk.checkin.site import Site, heard, opened
from tests.live import Tap
from tests.server.parties import ENROLMENT

PLAN = MarginalPlan(
    trust="distributed", mechanism="discrete_gaussian", epsilon=8.0, delta=1e-6, minimum_survivors=2, max_words=5
)
STAGES = 10
"""Check-ins within which a round of three ends: each goes as far as it can without the others."""


def open_round(server: Site, size: int = 3, seconds: float = 600.0) -> str:
    groups = {"size": size, "stage_seconds": seconds}
    return server.open(marginals=PLAN.model_dump(), minimum=2, groups=groups, smoothing=1.0)


@pytest.fixture
def three(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[list[Device]]:
    with ExitStack() as stack:
        devices = fleet(stack, tmp_path, tiny_bundle)
        for number, device in enumerate(devices):
            heard(device, number + 1)
        yield devices


def fleet(stack: ExitStack, folder: Path, bundle: Bundle) -> list[Device]:
    return [stack.enter_context(opened(folder / str(number), bundle)) for number in range(3)]


def until_sent(devices: list[Device], url: str) -> list[CheckInReport]:
    """Check-ins in turn until every device knows how the round ended for it."""
    ends: dict[int, CheckInReport] = {}
    for _ in range(STAGES):
        for number, device in enumerate(devices):
            if number not in ends:
                report = device.check_in(url, ENROLMENT)
                if report.sent:
                    ends[number] = report
    assert len(ends) == len(devices)
    return [ends[number] for number in range(len(devices))]


def pending(device: Device) -> float:
    return float(device._model_state.cache.pending.sum())


def test_devices_add_up(three: list[Device], server: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is the sum of what the devices masked, and neither traffic nor the server's files hold a summand."""
    vectors: list[NDArray[np.int64]] = []
    true_mask = participant.mask

    def noting(before: Any, deliveries: Any, vector: NDArray[np.int64]) -> Any:
        if before.masked is None:
            vectors.append(vector)
        return true_mask(before, deliveries, vector)

    monkeypatch.setattr(participant, "mask", noting)
    assert all(map(pending, three))
    round_id = open_round(server)
    with Tap(server.url, tmp_path / "tap") as tap:
        for device, report in zip(three, until_sent(three, tap.url), strict=True):
            (sent,) = report.sent
            assert (sent.round_id, sent.kind, sent.refused) == (round_id, "marginals", None)
            assert pending(device) == 0 and device._store.names("aggregation") == []
            assert device.learned().marginal_reports == 1
            assert device.check_in(tap.url).round_id is None, "one report a round"
    closed: Any = server.close(round_id)
    assert (closed["state"], closed["releases"]["marginals"]["reports"]) == ("published", 3)
    deviation = float(np.sqrt(3 * share_variance(PLAN)))
    assert len(vectors) == 3
    total = np.sum(vectors, axis=0)
    assert abs(total[three[0].base.words.id("light")] - 3 * FIXED_POINT) < 6 * deviation
    with closing(sqlite3.connect(tmp_path / "server/server.db")) as database:
        ((counts,),) = database.execute("SELECT counts FROM releases WHERE round_id = ?", (round_id,))
    assert np.frombuffer(counts, "<i8").tolist() == total.tolist()
    files = [path for name in ("server", "tap") for path in (tmp_path / name).rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    assert b"sharing_key" in content, "the traffic was kept"
    for vector in vectors:
        start = int(np.argmax(np.abs(vector[:-3]).astype(float)))
        for kind in ("<i4", "<i8"):
            raw = vector[start : start + 4].astype(kind).tobytes()
            assert raw not in content
            for shift in range(3):
                assert b64encode(bytes(shift) + raw)[4:-4] not in content


def test_a_restart_between_any_two_check_ins_changes_nothing(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    round_id = open_round(server, size=2)
    ended: set[int] = set()
    for _ in range(STAGES):
        for number in {0, 1} - ended:
            with opened(tmp_path / str(number), tiny_bundle) as device:
                if not device._store.names("aggregation"):
                    heard(device, number)
                if device.check_in(server.url, ENROLMENT).sent:
                    ended.add(number)
    assert ended == {0, 1}
    assert server.close(round_id)["releases"]["marginals"]["reports"] == 2


def test_counts_come_back_where_the_round_is_abandoned(three: list[Device], server: Site) -> None:
    round_id = open_round(server)
    before = [device._model_state.cache.pending.copy() for device in three]
    utterances = [device._model_state.cache.pending_utterances for device in three]
    for _ in range(2):
        for device in three:
            device.check_in(server.url, ENROLMENT)
    assert any(pending(device) == 0 for device in three), "counts are off the books once they are masked"
    server.operator.post(f"rounds/{round_id}/abandon")
    for device, counts, number in zip(three, before, utterances, strict=True):
        (sent,) = device.check_in(server.url).sent
        assert sent.refused == "too few devices were left; what they had to add is in no sum"
        np.testing.assert_allclose(device._model_state.cache.pending, counts)
        assert device._model_state.cache.pending_utterances == number and device.learned().marginal_reports == 0
        assert device.check_in(server.url).sent == (), "and it does not join again"


def test_a_user_who_withdraws_drops_out(three: list[Device], server: Site) -> None:
    open_round(server)
    for device in three:
        device.check_in(server.url, ENROLMENT)
    three[0].check_in(server.url)
    assert three[0]._store.names("aggregation") != []
    three[0].withdraw("marginals")
    assert three[0]._store.names("aggregation") == []
    for _ in range(3):
        assert three[0].check_in(server.url).sent == ()
    assert pending(three[0]) == 0


def test_who_does_not_agree_does_not_join(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    open_round(server)
    with opened(tmp_path / "device", tiny_bundle) as device:
        device.withdraw("marginals")
        report = device.check_in(server.url, ENROLMENT)
        assert report.round_id is not None and (report.sent, device._store.names("aggregation")) == ((), [])


def test_when_to_come_back(three: list[Device], server: Site) -> None:
    """As long as a group goes on, in time for its stages."""
    assert three[0].check_in(server.url, ENROLMENT).due_in_seconds > 50
    open_round(server, seconds=8.0)
    assert three[0].check_in(server.url).due_in_seconds == 2.0


def test_a_device_stops_where_the_server_lies(three: list[Device], server: Site) -> None:
    """Survivors that leave another device out, for one device only: it reveals nothing, and its counts stay off the
    books, since the others may have given the server the sum."""
    open_round(server)
    line = httpx.HTTPTransport()

    def lie(request: httpx.Request) -> httpx.Response:
        answer, who = line.handle_request(request), identity.load(three[0]._store, server.url)
        content = answer.read()
        if request.url.path.endswith("/aggregation") and answer.status_code == 200 and who is not None:
            task = json.loads(content)
            content = json.dumps(task | {"survivors": task["survivors"] and [who.device_id]}).encode()
        return httpx.Response(answer.status_code, content=content)

    with Client(server.url, transport=httpx.MockTransport(lie)) as client:
        for _ in range(STAGES):
            refused = [sent.refused for sent in three[0].check_in(client, ENROLMENT).sent]
            if refused:
                break
            for device in three[1:]:
                device.check_in(server.url, ENROLMENT)
    assert len(refused) == 1 and "survivors: found 1 of 3 devices, expected at least 2" in (refused[0] or "")
    assert pending(three[0]) == 0 and three[0]._store.names("aggregation") == []


def test_an_unreadable_part_is_named(three: list[Device], server: Site) -> None:
    open_round(server)
    three[0].check_in(server.url, ENROLMENT)
    (name,) = three[0]._store.names("aggregation")
    three[0]._store.put("aggregation", name, b"{}")
    with pytest.raises(StateError, match=f"aggregation/{name}: the value cannot be read"):
        three[0].check_in(server.url)


def test_a_server_that_cannot_be_reached_loses_nothing(three: list[Device], server: Site) -> None:
    open_round(server)
    three[0].check_in(server.url, ENROLMENT)
    failing = httpx.MockTransport(lambda request: httpx.Response(503))
    with Client(server.url, transport=failing, attempts=1) as client, pytest.raises(CheckInError, match="no usable"):
        three[0].check_in(client)
    until_sent(three, server.url)


@pytest.mark.parametrize("reopened", [False, True])
def test_counts_whose_mask_was_given_away_never_come_back(three, tmp_path, tiny_bundle, server, reopened) -> None:
    """Once any device has revealed, all counts may be in a sum: of those that have not revealed, too."""
    round_id, devices = open_round(server), three
    turns = itertools.cycle(devices)
    while not any(revealed(device) for device in devices):
        next(turns).check_in(server.url, ENROLMENT)
    assert 0 < sum(map(revealed, devices)) < 3
    server.operator.post(f"rounds/{round_id}/abandon")
    with ExitStack() as stack:
        if reopened:
            for device in three:
                device.close()
            devices = fleet(stack, tmp_path, tiny_bundle)
        for device in devices:
            (sent,) = device.check_in(server.url).sent
            assert sent.refused is None and pending(device) == 0
            assert device.check_in(server.url).sent == ()


def test_counts_that_a_lost_server_may_have_summed_never_come_back(three: list[Device], server: Site) -> None:
    """A server that was restored from before the round does not say whether the lost one took the sum."""
    open_round(server)
    turns = itertools.cycle(three)
    while all(map(pending, three)):
        next(turns).check_in(server.url, ENROLMENT)
    given = [pending(device) == 0 for device in three]
    assert not any(map(revealed, three))
    forgot = httpx.Response(404, json={"version": 1, "code": "unknown_round", "detail": "no such round"})
    line = httpx.HTTPTransport()

    def forget(request: httpx.Request) -> httpx.Response:
        return forgot if request.url.path.endswith("/aggregation") else line.handle_request(request)

    with Client(server.url, transport=httpx.MockTransport(forget)) as client:
        for device, gave in zip(three, given, strict=True):
            (sent,) = device.check_in(client).sent
            assert "unknown_round" in (sent.refused or "") and (pending(device) == 0) == gave


def revealed(device: Device) -> bool:
    """Whether the device's state says that it gave its shares away."""
    store = device._model_state.store
    kept = [store.get("aggregation", name) or b"" for name in store.names("aggregation")]
    return any(aggregation.Participation.model_validate_json(each).participant.revealed for each in kept)
