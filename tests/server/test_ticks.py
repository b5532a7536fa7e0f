"""Standing still shows in /readyz, of the process that leads and of the others, and a passing fault loses no round."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from server.storage.database import Database
from server.ticks import LOOP, TOLD_SECONDS, Seen, Ticks, seen_of, tell
from tests.server.parties import HEADERS, Operator, Party, serving, until


def test_a_passing_fault_shows_and_loses_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw deltas on a volume that is gone for a while: the round waits for it, another goes on, and readiness tells."""
    monkeypatch.setattr("server.readiness.SECONDS", 0.1)
    with serving(tmp_path, standing_seconds=1.0) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(deltas={})
        device.send_delta(round_id)
        assert until(lambda: http.get("/readyz").status_code == 200)
        folder = tmp_path / "blobs" / "deltas"
        folder.rename(tmp_path / "elsewhere")
        assert http.post(f"/v1/operator/rounds/{round_id}/close", headers=HEADERS).status_code == 500
        answer = until(lambda: (found := http.get("/readyz")).status_code == 503 and found)
        assert [name for name, good in answer.json()["checks"].items() if not good] == ["rounds"]
        assert answer.json()["tick_ages"][round_id] >= 1.0
        assert answer.json()["tick_ages"][LOOP] < 1.0, "the loop goes on"
        later = operator.open()
        device.send_counts(later, {7: 256})
        assert operator.close(later)["state"] == "published"
        if folder.exists():
            folder.rmdir()
        (tmp_path / "elsewhere").rename(folder)
        until(lambda: operator.get(f"rounds/{round_id}")["state"] == "published")
        until(lambda: http.get("/readyz").status_code == 200)


def test_a_loop_that_cannot_look_at_its_rounds_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.readiness.SECONDS", 0.1)
    monkeypatch.setattr("server.service.PAUSE_AFTER_FAILURE", 0.1)
    with serving(tmp_path, standing_seconds=1.0) as http:
        own = http.app.state.service
        Operator(http).open()
        until(lambda: http.get("/readyz").status_code == 200)
        with own.database.write() as connection:
            connection.execute(text("ALTER TABLE aggregation_groups RENAME TO lost"))
        answer = until(lambda: (found := http.get("/readyz")).status_code == 503 and found)
        assert answer.json()["checks"]["rounds"] is False and answer.json()["tick_ages"][LOOP] >= 1.0
        with own.database.write() as connection:
            connection.execute(text("ALTER TABLE lost RENAME TO aggregation_groups"))
        until(lambda: http.get("/readyz").status_code == 200)


def test_what_waits_for_a_long_step_does_not_stand_still_for_that() -> None:
    now = 0.0
    ticks = Ticks(lambda: now)
    ticks.watch(["r1", "r2"])
    now = 10.0
    ticks.good("r1", LOOP)
    with ticks.working():
        now = 500.0
        assert ticks.seen == Seen({LOOP: 490.0, "r1": 490.0, "r2": 500.0}, 490.0)
        assert not ticks.seen.stands_still(45.0, 1800.0)
        assert ticks.seen.stands_still(9.0, 1800.0), "r2 waited before"
        now = 2000.0
        assert ticks.seen.stands_still(45.0, 1800.0), "a step that long hangs"
    assert ticks.seen.busy is None and ticks.seen.stands_still(45.0, 1800.0)
    ticks.good("r1", "r2", "gone", LOOP)
    ticks.watch(["r2", "r3"])
    assert ticks.seen.ages == {LOOP: 0.0, "r2": 0.0, "r3": 0.0}


def test_other_processes_read_what_the_leading_one_wrote(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'server.db'}")) as database, database.write() as connection:
        assert seen_of(connection, 130.0, 100.0) == Seen({LOOP: 30.0}), "nobody has led since this process began"
        tell(connection, Seen({LOOP: 1.0, "r1": 40.0}, 0.5), 200.0)
        tell(connection, Seen({LOOP: 0.0, "r2": 60.0}, 0.5), 205.0)
        assert seen_of(connection, 206.0, 100.0) == Seen({LOOP: 1.0, "r2": 61.0}, 1.5)
        assert seen_of(connection, 206.0, 180.0).ages["r2"] == 26.0, "it knows nothing of the time before it began"
        stale = seen_of(connection, 205.0 + 3 * TOLD_SECONDS + 30.0, 100.0)
        assert stale.busy is None and stale.stands_still(44.0, 1800.0), "the leading process is gone"
