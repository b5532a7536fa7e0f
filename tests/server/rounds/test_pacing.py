"""When devices are told to come back: the window itself, a fleet of a million on a mock clock, the server's answers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert

from server.rounds.pacing import SEEN_RESOLUTION, SEEN_SECONDS, SHORTEST, Demand, Fleet, note_seen, window
from server.storage.database import Database
from server.storage.schema import devices as device_table
from tests.server.parties import Devices, Operator


@pytest.mark.parametrize(
    ("fleet", "capacity", "usual", "demand", "earliest", "latest"),
    [
        (0, 100.0, 60.0, None, 54.0, 66.0),
        (1000, 100.0, 60.0, None, 54.0, 66.0),
        (4000, 100.0, 60.0, None, 40.0, 80.0),
        (1_000_000, 100.0, 60.0, None, 10_000.0, 20_000.0),
        (1_000_000, 1000.0, 86_400.0, None, 77_760.0, 95_040.0),
        # 20,000 reports in 1,000 s, at two check-ins each: 40 a second; or of a twentieth of the fleet.
        (1_000_000, 1000.0, 86_400.0, Demand(20_000, 1000.0), 22_500.0, 27_500.0),
        (1_000_000, 1000.0, 86_400.0, Demand(20_000, 1000.0, 0.05), 1000.0, 2000.0),
        (1_000_000, 100.0, 86_400.0, Demand(10**9, 1.0), 10_000.0, 20_000.0),
        (10, 100.0, 60.0, Demand(1000, 1.0), 9.0, 11.0),
        (10, 100.0, 4.0, Demand(1000, 1.0), 3.6, 4.4),
        (10, 100.0, 60.0, Demand(0, 1.0), 54.0, 66.0),
    ],
)
def test_windows(fleet: int, capacity: float, usual: float, demand, earliest: float, latest: float) -> None:
    found = window(fleet, capacity, usual, demand)
    assert (found.earliest, found.latest) == (pytest.approx(earliest), pytest.approx(latest))


@given(
    st.integers(0, 10**8), st.floats(0.1, 1e5), st.floats(1.0, 1e6), st.integers(0, 10**7), st.floats(0.0, 1e6),
    st.floats(1e-6, 1.0),
)  # fmt: skip
def test_no_window_lets_more_come_than_the_server_stands(fleet, capacity, usual, reports: int, seconds, share) -> None:
    found = window(fleet, capacity, usual, Demand(reports, seconds, share))
    assert 0.0 < found.earliest <= found.draw() <= found.latest
    assert fleet <= capacity * (found.latest - found.earliest) * (1 + 1e-9), "a herd spreads over the window"
    assert fleet <= capacity * found.mean / 1.5 * (1 + 1e-9), "and in the long run there are fewer"
    assert found.mean >= min(usual, SHORTEST) * (1 - 1e-9)
    assert found.earliest * (1 + 1e-9) >= found.latest - found.earliest, "nobody is back before the last has come"


STEP = 20
"""Seconds by which the mock clock goes on."""


def test_a_million_devices_on_a_mock_clock() -> None:
    """All come within ten minutes, as after an outage. From then on no more come in any second than the server stands,
    though the usual interval is far shorter; a round of 200,000 reports fills in time, though only 60 % of
    those that come have something to send."""
    count, capacity, goal = 1_000_000, 250.0, 200_000
    due, random = np.random.default_rng(1).uniform(0, 600, count), np.random.default_rng(2)
    ready = np.random.default_rng(3).random(count) < 0.6
    opened, deadline, closed_at, arrivals = 5000, 5000 + 7200, math.inf, np.zeros(0, np.int64)
    reported = np.zeros(count, bool)
    for now in range(0, 6 * 3600, STEP):
        coming = np.flatnonzero(due < now + STEP)
        coming = coming[np.argsort(due[coming])]
        arrivals = np.append(arrivals, np.bincount((due[coming] - now).astype(np.int64), minlength=STEP))
        missing, demand = goal - int(np.count_nonzero(reported)), None
        if opened <= now < min(deadline, closed_at):
            demand = Demand(missing, deadline - now)
            able = coming[ready[coming] & ~reported[coming]][:missing]
            reported[able] = True
            closed_at = now + STEP if able.size == missing else closed_at
        told = window(count, capacity, 900.0, demand)
        assert told.earliest > STEP, "nobody comes twice in a step"
        due[coming] += random.uniform(told.earliest, told.latest, coming.size)
    later = arrivals[620:]
    # Poisson arrivals of mean at most c: seven standard deviations are passed once in 10^11 seconds.
    assert later.max() <= capacity + 7 * math.sqrt(capacity)
    minutes = later[: later.size // 60 * 60].reshape(-1, 60).mean(axis=1)
    assert minutes.max() <= capacity * 1.05
    assert minutes[-120:].mean() == pytest.approx(2 * capacity / 3, rel=0.1), "and they are as many as intended"
    assert np.count_nonzero(reported) == goal and closed_at <= deadline


def test_who_counts_as_the_fleet(tmp_path: Path) -> None:
    now = 10 * SEEN_SECONDS
    old = now - SEEN_SECONDS - 1
    rows = [
        {"enrolled_at": old, "seen_at": now - 5},
        {"enrolled_at": now - 5, "seen_at": None},
        {"enrolled_at": old, "seen_at": old},
        {"enrolled_at": old, "seen_at": None},
        {"enrolled_at": now - 5, "seen_at": now - 5, "revoked_at": now - 1},
    ]
    database, fleet = Database(f"sqlite:///{tmp_path}/fleet.db"), Fleet()
    with database.write() as connection:
        for number, row in enumerate(rows):
            key = number.to_bytes(32, "big")
            connection.execute(insert(device_table).values(id=f"d{number}", public_key=key, **row))
        assert fleet.size(connection, now) == 3, "two, and one that was revoked lately"
        note_seen(connection, "d2", now)
        assert fleet.size(connection, now + 1) == 3, "counted lately"
        assert fleet.size(connection, now + 60) == 4
        note_seen(connection, "d2", now + SEEN_RESOLUTION / 2)
        seen = "SELECT seen_at FROM devices WHERE id = 'd2'"
        assert connection.exec_driver_sql(seen).scalar() == now, "not written at every check-in"
        note_seen(connection, "d2", now + 2 * SEEN_RESOLUTION)
        assert connection.exec_driver_sql(seen).scalar() == now + 2 * SEEN_RESOLUTION
        assert fleet.size(connection, now - 2 * SEEN_SECONDS) == 5, "a clock that went back counts anew"


def test_the_server_answers_a_window(http: Any, operator: Operator, devices: Devices) -> None:
    fleet = devices(3)
    assert all(54 <= device.check_in().json()["retry_after_seconds"] <= 66 for device in fleet)
    operator.open(goal=3, seconds=100.0)
    http.app.state.service.fleet = Fleet()
    for device in fleet:  # twice 3 reports in 100 s, of 3 devices: every 50 s
        assert 45 <= device.check_in().json()["retry_after_seconds"] <= 56
