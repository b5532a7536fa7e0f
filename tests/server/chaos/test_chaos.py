"""A real server process, killed while devices upload and rounds are aggregated: no acknowledged report is lost, none
is counted twice, and the books agree."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, func, inspect, select

from device_sdk.wire.messages import FIXED_POINT
from server.registry.models import find_model, load
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from server.storage.schema import ledger, release_keys, releases, reports, rounds
from tests.server.chaos.fleet import DELTA, Fleet, Plan
from tests.server.chaos.server_process import BucketServer
from tests.server.parties import settings


def check_books(database: Database, folder: Path, fleet: Fleet) -> None:
    """Every acknowledged report is counted exactly once, and the ledger is equal to the aggregate."""
    devices = fleet.plan.devices
    blobs = FolderBlobs(folder, tidy=False)
    with database.read() as connection:
        assert set(connection.execute(select(reports.c.id)).scalars()) == fleet.acknowledged
        assert len(fleet.acknowledged) == fleet.plan.uploads
        assert set(connection.execute(select(ledger.c.report_id)).scalars()) == fleet.acknowledged
        charged = _per_round(connection, ledger)
        assert charged == _per_round(connection, reports)
        assert charged == {(each, stream): devices for each in fleet.versions for stream in ("marginals", "deltas")}
        assert set(connection.execute(select(ledger.c.draw)).scalars()) == {1}
        drawn = {(row.round_id, row.stream): row for row in connection.execute(select(releases))}
        assert {key: row.reports for key, row in drawn.items()} == charged
        for round_id in fleet.versions:
            row = connection.execute(select(rounds).where(rounds.c.id == round_id)).one()
            assert (row.state, row.marginals_reports, row.deltas_reports) == ("published", devices, devices)
            assert (np.frombuffer(drawn[round_id, "marginals"].counts, "<i8") / FIXED_POINT).tolist() == [1.0] * devices
            moved = _weights(connection, blobs, row.model_version) - _weights(connection, blobs, row.base_model)
            assert np.allclose(moved * devices / DELTA, 1.0, rtol=0, atol=1e-3)
        keys = list(connection.execute(select(release_keys)))
        assert len(keys) == len(fleet.versions) == len({row.key_sha256 for row in keys})
        assert {row.key for row in keys} == {None}, "a key is forgotten with the reports"
        raw = select(func.count()).where(reports.c.counts.is_not(None) | reports.c.blob.is_not(None))
        assert connection.execute(raw).scalar_one() == 0
    assert list(blobs.names("deltas")) == []


def check_integrity(database: Database) -> None:
    """What the database itself has to say: SQLite checks pages, indexes and references, PostgreSQL reads every table
    and builds its indexes anew."""
    with database.write() as connection:
        if database.sqlite:
            assert connection.exec_driver_sql("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall() == []
            return
        for name in inspect(connection).get_table_names():
            before = connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one()
            connection.exec_driver_sql(f"REINDEX TABLE {name}")  # reads every row, and finds two where one may be
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one() == before


def _per_round(connection: Connection, table: object) -> dict[tuple[str, str], int]:
    columns = table.c  # type: ignore[attr-defined]
    query = select(columns.round_id, columns.stream, func.count()).group_by(columns.round_id, columns.stream)
    return {(round_id, stream): count for round_id, stream, count in connection.execute(query)}


def _weights(connection: Connection, blobs: FolderBlobs, version: str) -> np.ndarray:
    return load(blobs, find_model(connection, version).sha256)["w"].astype(np.float64)


PART = Plan(devices=24, rounds=2, kills=4, senders=3)
WHOLE = Plan(devices=500, rounds=100, kills=200)


@pytest.mark.parametrize("plan", [PART, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_every_acknowledged_report_is_counted_once(tmp_path: Path, place: str, plan: Plan) -> None:
    with BucketServer(tmp_path, place, plan.devices, plan.devices) as server:
        fleet = Fleet(server, plan)
        fleet.run()
        assert server.stop() == 0
    assert fleet.kills == plan.kills
    with closing(Database(settings(tmp_path, database=place).database_url)) as database:
        check_books(database, tmp_path / "blobs", fleet)
        check_integrity(database)
