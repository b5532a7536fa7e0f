"""Random operations on a whole server and its devices, on a clock of their own: replays, dropped requests, dropped
responses, kills, restarts, rotated keys and expiry. Every report owns one bucket, and no bucket ever differs from 1:
above it, a report was counted twice, below it, one was lost."""

import gc
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from device_sdk.wire.messages import FIXED_POINT
from server.registry.models import find_model, load
from server.rounds.reports import id_of_report
from server.storage.database import Database
from server.storage.schema import ledger, release_keys, releases, reports, rounds
from tests.server.clock.fleet import DELTA, Fleet
from tests.server.clock.world import BUCKETS, Clock, World, make_template, server_settings

OPERATIONS = 50


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where there is such a disk: nothing here is about the disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="clock-", dir=memory if memory.is_dir() else None))
    gc.disable()  # between sequences is often enough, and a fifth quicker
    yield folder
    gc.enable()
    shutil.rmtree(folder)


@pytest.mark.parametrize("sequences", [15, pytest.param(20_000, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_no_bucket_ever_differs_from_one(place: Path, sequences: int) -> None:
    template = make_template(place / f"template-{sequences}")
    database = Database(server_settings(place / "world", Clock()).database_url)
    database.close()
    seen = Counter[str]()
    for seed in range(sequences):
        if seed % 20 == 0:
            gc.collect()
        try:
            seen += play(template, place / "world", database, seed)
        except BaseException as error:
            error.add_note(f"sequence with seed {seed}")
            raise
    for what in ("dropped requests", "dropped responses", "kills in a request", "kills in a tick", "replay", "rotate"):
        assert seen[what] >= sequences / 2, (what, seen)
    print(f"{sequences} sequences: {dict(sorted(seen.items()))}")


def play(template: Path, folder: Path, database: Database, seed: int) -> Counter[str]:
    """One sequence; returns how often each thing happened."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    world = World(folder, database)
    try:
        fleet = Fleet(world, random.Random(seed))
        fleet.operate(OPERATIONS)
        fleet.settle()
        judge(world, fleet)
    finally:
        world.close()
        shutil.rmtree(folder)
    return fleet.counted


def judge(world: World, fleet: Fleet) -> None:
    service = world.service
    counts, moved = np.zeros(BUCKETS), np.zeros(BUCKETS)
    with service.database.read() as connection:
        for release in connection.execute(select(releases)):
            if release.stream == "marginals":
                counts += np.frombuffer(release.counts, "<i8") / FIXED_POINT
                continue
            row = connection.execute(select(rounds).where(rounds.c.id == release.round_id)).one()
            new, base = (
                load(service.blobs, find_model(connection, version).sha256)["w"].astype(np.float64)
                for version in (row.model_version, row.base_model)
            )
            moved += (new - base) * release.reports / DELTA
        accepted = sorted(connection.execute(select(reports.c.id)).scalars())
        charged = sorted(connection.execute(select(ledger.c.report_id)).scalars())
        keys = list(connection.execute(select(release_keys.c.key_sha256)).scalars())
    expected = {stream: np.arange(BUCKETS) < fleet.made[stream] for stream in fleet.made}
    assert counts.tolist() == expected["marginals"].tolist()
    assert np.allclose(moved, expected["deltas"], rtol=0, atol=1e-4), moved
    assert accepted == sorted(id_of_report(each.device.id, each.report_id) for each in fleet.acknowledged)
    assert charged == accepted, "one charge for every report, also where noise was drawn again"
    assert len(keys) == len(set(keys))
