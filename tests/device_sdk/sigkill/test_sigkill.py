"""A device killed at any point of its life: its state opens, counters never go back, no report is lost or counted
twice, and what was to be forgotten is forgotten whole or not at all."""

import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_sdk.bundle import Bundle
from device_sdk.checkin import identity
from device_sdk.device import Device
from server.rounds.reports import id_of_report
from tests.device_sdk.devices import tell
from tests.device_sdk.sigkill.nursery import KEY, SETTINGS, Order, figures, held, lives
from tests.export.imports.conftest import folders, imported
from tests.live import LiveServer
from tests.server.parties import ENROLMENT, NO_NOISE, Operator

__all__ = ["folders", "imported"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for processes by descriptor")

PLANS = {"marginals": {"epsilon": NO_NOISE}, "deltas": {"clip_norm": 10.0}, "suppression": 0.0}


def campaign(folder: Path, bundle: Bundle, kills: int, *, forgets: bool, seed: int) -> Counter[str]:
    """Kills ``kills`` devices over one state folder and checks the state after each. Returns the points."""
    state, points, last, noted = folder / "state", Counter[str](), None, dict[str, int]()
    with LiveServer(folder / "server", bundle.path) as server, httpx.Client(timeout=300) as http:
        operator = Operator(http, server.url)
        round_id = operator.open(**PLANS)
        order = Order(str(state), str(bundle.path), server.url, 10, forgets)
        for number, told in enumerate(lives(order, kills, seed, points)):
            # The server forgets these with the round.
            query = "SELECT id, utterances FROM reports WHERE stream = 'marginals' AND utterances > 0"
            noted |= dict(_rows(server, query))
            last = _check(state, bundle, server, told, last, noted)
            if number % 7 == 6:
                operator.close(round_id)
                round_id = operator.open(**PLANS)
        with Device.open(state, KEY, bundle, SETTINGS) as device:  # it works as ever
            device.agree("counting", "learning", "marginals", "deltas")
            device.check_in(server.url, ENROLMENT)
            operator.close(round_id)
            device.check_in(server.url)
            operator.open(**PLANS)
            tell(device)
            assert device.learn().steps == 1
            sent = device.check_in(server.url).sent
            assert [(each.kind, each.refused) for each in sent] == [("marginals", None), ("deltas", None)]
            assert held(device, server.url) == {}, "nothing waits once the server can be reached"
        streams = dict(_rows(server, "SELECT stream, count(*) FROM reports GROUP BY stream"))
        assert _rows(server, "SELECT count(*) - count(DISTINCT report_id) FROM ledger") == [(0,)]
        assert min(streams["marginals"], streams["deltas"]) >= 1
    return points


def _check(state: Path, bundle: Bundle, server: LiveServer, told: list[Any], last: Any, noted: dict[str, int]) -> Any:
    """The state after an ending. told: by the life that ended; last: what held before it; noted: of how many utterances
    every report of counts is."""
    with Device.open(state, KEY, bundle, SETTINGS) as device:
        now = figures(device)
        rows = device._store._rows
        assert rows("PRAGMA integrity_check") == [("ok",)]
        assert {row[0] for row in rows("SELECT name FROM meta")} == {"salt", "check"}
        named = {row[0] for row in rows("SELECT file FROM weights UNION SELECT file FROM outbox") if row[0]}
        assert {path.name for path in state.glob("*.sealed")} == named
        who = identity.load(device._store, server.url)
        # Every utterance is in one place: pending, in a report that waits, or in one that the server has counted once.
        own, query = (
            (who and who.device_id) or "",
            "SELECT id FROM reports WHERE device_id = ? AND stream = 'marginals'",
        )
        counted = {name for (name,) in _rows(server, query, own)}
        cache, reports = device._model_state.cache, held(device, server.url).items()
        waiting = sum(count for name, count in reports if id_of_report(own, name) not in counted)
        assert cache.pending_utterances + waiting + sum(noted.get(name, 0) for name in counted) == cache.utterances
        known = "borborygmus" in now["vocabulary"]
        assert known or "borborygmus" not in cache.confirmed, "a correction's word is counted and known, or neither"
        assert all(count <= cache.utterances for count in cache.confirmed.values()), "none is counted twice"
        device._store.get("weights", "local")
    lives = ([] if last is None else [last]) + [each for each in told if "utterances" in each]
    begun = max((index for index, each in enumerate(lives) if each["what"] == "forgot"), default=0)
    before = lives[-1] if lives else None
    if before is not None and before["what"] == "forgetting" and now["salt"] != before["salt"]:
        assert (now["utterances"], now["steps"], now["sent"], now["marginals"]) == (0, 0, [0, 0], 0)
        assert (now["model"], who) == (bundle.version, None)
    elif before is not None:
        for each in lives[begun:]:
            assert now["salt"] == each["salt"]
            assert now["utterances"] >= each["utterances"], "counters never go back"
            assert now["marginals"] >= each["marginals"]
            assert set(now["vocabulary"]) >= set(each["vocabulary"]), "no word that the user gave is lost"
            assert all(one >= other for one, other in zip(now["sent"], each["sent"], strict=True))
            assert now["rollbacks"] >= each["rollbacks"]
            same = (now["model"], now["rollbacks"]) == (each["model"], each["rollbacks"])
            assert not same or now["steps"] >= each["steps"], "steps are undone by the guard only"
    gone = {bytes.fromhex(each["salt"]) for each in lives} - {bytes.fromhex(now["salt"])}
    content = b"".join(path.read_bytes() for path in state.iterdir())
    assert not any(salt in content for salt in gone), "what an old salt made can be read"
    return {"what": "opened", **now}


def _rows(server: LiveServer, query: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{server.folder / 'server.db'}?mode=ro", uri=True)) as database:
        return database.execute(query, values).fetchall()


def test_some_kills(tmp_path: Path, tiny_bundle: Bundle) -> None:
    assert campaign(tmp_path / "kills", tiny_bundle, 15, forgets=True, seed=2).total() == 15


@pytest.mark.slow
@pytest.mark.parametrize(("forgets", "kills"), [(False, 600), (True, 400)])
def test_a_thousand_kills(tmp_path: Path, tiny_bundle: Bundle, forgets: bool, kills: int) -> None:
    points = campaign(tmp_path / "kills", tiny_bundle, kills, forgets=forgets, seed=3 + forgets)
    assert points.total() == kills and points["a moment"] >= kills / 3
    expected = {"before sql COMMIT", "after sql COMMIT", "after sql INSERT INTO", "before fsync", "after fsync"}
    expected |= {"after sql VACUUM", "before sql VACUUM"} if forgets else {"before unlink .sealed"}
    assert expected | {"file"} <= points.keys()
    assert any(point.startswith("after request") for point in points), "the server has it, the device does not know"


@pytest.mark.slow
def test_a_hundred_kills_of_a_device_whose_model_was_imported(tmp_path: Path, imported: dict[str, Bundle]) -> None:
    assert campaign(tmp_path / "kills", imported["zipformer2"], 100, forgets=True, seed=5).total() == 100
