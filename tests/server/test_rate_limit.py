"""How often one may ask: against another formulation of the same limit, and at a server's door."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from server.app import create_app
from server.rate_limit import Bucket, Buckets, Rate, key_of, take
from server.settings import Rates
from tests.server.parties import HEADERS, Party, initial, settings


def virtual_scheduling(times: list[float], rate: Rate) -> list[bool]:
    """Who is let through by ITU-T I.371's virtual scheduling: a time at which the next is due, and a tolerance."""
    interval = 1 / Fraction(rate.per_second)
    tolerance = (Fraction(rate.burst) - 1) * interval
    due: Fraction | None = None
    found = []
    for time in map(Fraction, times):
        good = due is None or time >= due - tolerance
        if good:
            due = max(time, due if due is not None else time) + interval
        found.append(good)
    return found


@given(
    steps=st.lists(st.integers(0, 40), max_size=60),
    per_second=st.sampled_from([0.25, 1.0, 4.0]),
    burst=st.integers(1, 6),
)
def test_lets_through_what_virtual_scheduling_does(steps: list[int], per_second: float, burst: int) -> None:
    rate, bucket, found = Rate(per_second, float(burst)), None, []
    times = [step / 8 for step in accumulate(steps)]  # dyadic: no rounding in either
    for now in times:
        bucket, wait = take(bucket, rate, now)
        found.append(wait == 0.0)
    assert found == virtual_scheduling(times, rate)


@given(left=st.floats(0, 0.999), per_second=st.sampled_from([0.5, 2.0, 50.0]))
def test_after_the_wait_it_told_a_request_is_answered(left: float, per_second: float) -> None:
    rate = Rate(per_second, 3.0)
    same, wait = take(Bucket(left, 10.0), rate, 10.0)
    assert (same.left, wait > 0) == (left, True), "who is refused loses nothing"
    assert take(same, rate, 10.0 + wait + 1e-6)[1] == 0.0
    assert take(same, rate, 10.0 + wait - 1e-3)[1] > 0.0 or wait < 1e-3


def test_a_clock_that_steps_back_gives_nothing() -> None:
    bucket, _ = take(Bucket(1.0, 100.0), Rate(1.0, 5.0), 50.0)
    assert bucket == Bucket(0.0, 100.0)


def test_memory_is_bounded_and_the_busy_are_remembered() -> None:
    now = [0.0]
    buckets = Buckets(Rate(1e-3, 2.0), 100, lambda: now[0])
    for number in range(10_000):
        buckets.wait(f"stranger {number}")
        buckets.wait("busy")
    assert len(buckets) == 100 and buckets.wait("busy") > 900


@pytest.mark.parametrize(
    ("host", "key"),
    [
        *((here, None) for here in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")),
        *((prefix + "203.0.113.9", "203.0.113.9") for prefix in ("", "::ffff:")),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("x" * 500, "x" * 64),
        ("", ""),
        (None, ""),
    ],
)
def test_whom_requests_are_counted_for(host: str | None, key: str | None) -> None:
    assert key_of(host) == key


Open = Callable[[str], TestClient]


@pytest.fixture
def open_client(tmp_path: Path) -> Iterator[Open]:
    """Clients at addresses of the test's choice, of one server that lets an address ask 5 times and a device 3."""
    rates = Rates(Rate(1e-3, 5.0), Rate(1e-3, 3.0))
    app = create_app(settings(tmp_path, rates=rates, trusted_proxies=("127.0.0.1", "10.1.0.0/16")), initial())
    with app.state.service:
        yield lambda host: TestClient(app, raise_server_exceptions=False, client=(host, 5000))


def test_an_address_that_asks_too_often_is_told_when_to_come_back(open_client: Open) -> None:
    http = open_client("203.0.113.9")
    assert [http.get("/healthz").status_code for _ in range(6)] == [200] * 5 + [429]
    answer = http.get("/nothing")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert 990 <= int(answer.headers["retry-after"]) <= 1000 and len(answer.headers["x-request-id"]) == 32
    assert open_client("203.0.113.10").get("/healthz").status_code == 200, "another address is not meant"
    here = open_client("127.0.0.1")
    assert {here.get("/healthz").status_code for _ in range(20)} == {200}, "nor are programs of this machine"
    assert 'idiolect_limited_total{by="address"} 2.0' in here.get("/metrics", headers=HEADERS).text


@pytest.mark.parametrize("proxy", ["127.0.0.1", "10.1.2.3"])
def test_a_trusted_proxy_says_whom_a_request_is_from(open_client: Open, proxy: str) -> None:
    http = open_client(proxy)

    def ask(forwarded: str) -> int:
        return int(http.get("/healthz", headers={"X-Forwarded-For": forwarded}).status_code)

    assert [ask("203.0.113.9") for _ in range(6)] == [200] * 5 + [429]
    assert ask("198.51.100.1, 203.0.113.9") == 429, "what the client wrote there itself does not count"
    assert ask("203.0.113.10") == 200


def test_nobody_else_is_believed(open_client: Open) -> None:
    http = open_client("203.0.113.9")
    found = [http.get("/healthz", headers={"X-Forwarded-For": f"198.51.100.{n}"}).status_code for n in range(6)]
    assert found == [200] * 5 + [429]
    assert http.get("/healthz", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 429


def test_a_device_is_counted_wherever_it_asks_from_and_by_nobody_else(open_client: Open) -> None:
    device, other = Party(open_client("203.0.113.1")).enrol(), Party(open_client("203.0.113.2")).enrol()
    forger = Party(open_client("203.0.113.3"))
    forger.id = device.id
    for _ in range(4):
        assert forger.check_in().status_code == 401
    found = []
    for number in range(4):
        device.http = open_client(f"198.51.100.{number}")
        found.append(device.check_in())
    assert [answer.status_code for answer in found] == [200] * 3 + [429]
    assert "this device" in found[-1].json()["detail"] and int(found[-1].headers["retry-after"]) > 0
    assert other.check_in().status_code == 200


@pytest.mark.parametrize(
    "changes",
    [{"address": Rate(0.0, 5.0)}, {"device": Rate(1.0, 0.5)}, {"address": Rate(float("nan"), 5.0)}, {"remembered": 0}],
)
def test_bad_rates(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"rates.{next(iter(changes))}"):
        Rates(**changes)


def test_bad_proxies(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"trusted_proxies: found '10\.0\.0\.1/8'"):
        settings(tmp_path, trusted_proxies=("10.0.0.1/8",))
