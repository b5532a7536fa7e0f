"""A device comes when its server wants it, over restarts, outages and clocks that are set."""

from pathlib import Path

import pytest

from device_sdk import Bundle, CheckInError, Client, Device, Postponed, StateError
from device_sdk.checkin import retry_window
from device_sdk.checkin.retry_window import FARTHEST, LONGEST, note_answer, note_failure, remaining
from device_sdk.state import Store
from tests.device_sdk.devices import KEY

URL = "https://server.example"


@pytest.mark.parametrize(
    ("seconds", "later", "left"),
    [(100, 0, 100), (100, 60, 40), (100, 100, 0), (100, 1e9, 0), (100, -1e9, 100), (-5, 0, 0), (1e300, 0, FARTHEST)],
)
def test_the_wait_runs_down(store: Store, seconds: float, later: float, left: float) -> None:
    assert remaining(store, URL, 1e6) == 0.0, "never there"
    note_answer(store, URL, seconds, 1e6)
    assert remaining(store, URL, 1e6 + later) == left and remaining(store, "https://other.example", 1e6) == 0.0


def test_failures_double_the_wait_and_spread_it(store: Store) -> None:
    bounds = []
    for number in range(14):
        note_failure(store, URL, 1e6)
        pause = min(LONGEST, 60.0 * 2**number)
        left = remaining(store, URL, 1e6)
        assert pause / 2 <= left <= pause
        bounds.append(left / pause)
    assert max(bounds) - min(bounds) > 0.05, "devices that lost their server together come back apart"
    note_answer(store, URL, 60.0, 1e6)
    note_failure(store, URL, 1e6)
    assert remaining(store, URL, 1e6) <= 60.0, "an answer begins anew"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"x": 1}', b'{"x": {"at": NaN, "seconds": 1, "failures": 0}}'])
def test_a_damaged_record_is_named(store: Store, content: bytes) -> None:
    store.put("settings", "due", content)
    with pytest.raises(StateError, match="settings/due"):
        remaining(store, URL, 0.0)


def test_a_device_on_a_timer_keeps_pace(tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreachable twice; then, after a restart, asked too early and in time."""
    now = [1e6]
    monkeypatch.setattr("device_sdk.device.time.time", lambda: now[0])
    client = Client("http://127.0.0.1:9", attempts=1)

    def due(device: Device) -> float:
        return device.due_in_seconds("http://127.0.0.1:9/")

    with Device.open(tmp_path / "device", KEY, tiny_bundle) as device:
        assert due(device) == 0.0
        with pytest.raises(CheckInError, match="no usable answer"):
            device.check_in(client, "token", when_due=True)
        assert 30.0 <= due(device) <= 60.0
    with Device.open(tmp_path / "device", KEY, tiny_bundle) as device:
        with pytest.raises(Postponed, match="wants this device in"):
            device.check_in(client, "token", when_due=True)
        now[0] += 61.0
        with pytest.raises(CheckInError, match="no usable answer"):
            device.check_in(client, "token", when_due=True)
        assert 60.0 <= due(device) <= 120.0
        retry_window.note_answer(device._store, "http://127.0.0.1:9", 3600.0, now[0])
        assert device.due_in_seconds(client) == 3600.0
        with pytest.raises(CheckInError, match="no usable answer"):
            device.check_in(client, "token")  # an app that knows better may
    client.close()
