"""A real server process, killed while devices upload and rounds are aggregated: no acknowledged report is lost, none
is counted twice, and the books agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.storage.database import Database
from tests.server.chaos.books import check_books, check_integrity
from tests.server.chaos.fleet import Fleet, Plan
from tests.server.chaos.server_process import BucketServer
from tests.server.parties import settings

PART = Plan(devices=24, rounds=2, kills=4, senders=3)
WHOLE = Plan(devices=500, rounds=100, kills=200)


@pytest.mark.parametrize("plan", [PART, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_every_acknowledged_report_is_counted_once(tmp_path: Path, place: str, plan: Plan) -> None:
    server = BucketServer(tmp_path, place, plan.devices, plan.devices)
    fleet = Fleet(server, plan)
    try:
        server.start()
        fleet.run()
        assert server.stop() == 0
    finally:
        server.end()
    assert fleet.kills == plan.kills
    database = Database(settings(tmp_path, database=place).database_url)
    try:
        check_books(database, tmp_path / "blobs", fleet)
        check_integrity(database)
    finally:
        database.close()
