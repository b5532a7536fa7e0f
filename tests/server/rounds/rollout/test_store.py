"""Rollouts in the database, on SQLite and on PostgreSQL; and what signed metadata says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from device_sdk.wire.rollout import arm_of
from server.plans.round import RolloutSettings
from server.registry.initial import register_initial
from server.registry.models import add_model, current_version, history
from server.registry.models import store as store_weights
from server.registry.retention import superfluous
from server.rounds.rollout import store
from server.rounds.rollout.evidence import Watched
from server.settings import database_url
from server.signing.store import published_files
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from server.storage.schema import devices
from tests.server.parties import initial

NOW = 1_800_000_000.0
SETTINGS = RolloutSettings(share=0.3, patience=100.0, seconds=500.0, minimum=2)
IDS = [f"{number:032x}" for number in range(60)]


@pytest.fixture
def database(place: str, tmp_path: Path) -> Iterator[Database]:
    found, blobs = Database(database_url(place)), FolderBlobs(tmp_path / "blobs")
    register_initial(found, blobs, initial(), NOW)
    with found.write() as connection:
        for number, version in enumerate(("v2", "v3", "v4")):
            stored = store_weights(blobs, initial(seed=number + 2).weights, {"version": version})
            add_model(connection, version, stored, now=NOW + number, parent="base-1")
        for number, device in enumerate(IDS):
            row = {"id": device, "public_key": number.to_bytes(32, "big"), "enrolled_at": NOW}
            connection.execute(insert(devices).values(row))
    yield found
    found.close()


def test_devices_are_counted_as_they_come_and_as_they_stay_away(database: Database) -> None:
    arms = {device: arm_of(device, "v2", 0.3) for device in IDS}
    rollout, control = ([device for device in IDS if arms[device] == arm] for arm in ("rollout", "control"))
    assert len(rollout) > 5 and len(control) > 5
    with database.write() as connection:
        assert store.model_for(connection, IDS[0], "base-1", NOW).version == "base-1"
        store.begin(connection, "v2", SETTINGS, NOW, "a trial")
        for device in IDS:
            found = store.model_for(connection, device, "base-1", NOW + 1)
            assert found.version == ("v2" if arms[device] == "rollout" else "base-1")
        row = store.require_running(connection)
        assert store.evidence(connection, row, NOW + 100) == store.Evidence(Watched(0, 0), Watched(0, 0))
        for device in (*rollout[2:], *control[1:]):
            store.model_for(connection, device, "v2" if device in rollout[3:] else "base-1", NOW + 90)
        for when, lost in ((NOW + 101, (3, 0)), (NOW + 150, (3, 1)), (NOW + 191, (len(rollout), len(control)))):
            found = store.evidence(connection, row, when)
            assert found == store.Evidence(Watched(len(rollout), lost[0]), Watched(len(control), lost[1]))
        shown = store.view(connection, row, NOW + 150)
        assert shown["arms"]["rollout"] == {"seen": len(rollout), "watched": len(rollout), "failed": 3}
        assert json.loads(json.dumps(shown))["settings"]["share"] == 0.3


def test_metadata_names_both_models_and_the_share(database: Database) -> None:
    def described(version: str) -> dict[str, object] | None:
        with database.read() as connection:
            found = {file.path: file.custom for file in published_files(connection)}
        return found.get(f"models/{version}.safetensors")

    assert described("v2") is None
    with database.write() as connection:
        store.begin(connection, "v2", SETTINGS, NOW, "")
    assert described("base-1") == {"current": True, "teacher": None}
    assert described("v2") == {"rollout": 300_000, "teacher": None}
    with database.write() as connection:
        store.end(connection, store.require_running(connection), "promoted", NOW + 5, "good", {})
        assert current_version(connection, "model") == "v2"
        assert [entry["version"] for entry in history(connection, "model")] == ["v2", "base-1"]
        notes = [entry["note"] for entry in history(connection, "rollout")]
        assert notes == ["promoted: good", "30 % of the devices; "]
    assert described("v2") == {"current": True, "teacher": None}
    assert described("base-1") == {}


def test_weights_of_a_running_rollout_stay(database: Database) -> None:
    with database.write() as connection:
        store.begin(connection, "v2", SETTINGS, NOW, "")
        kept = store.find_model(connection, "v2").sha256
        dropped = store.find_model(connection, "v3").sha256
        assert superfluous(connection, 1) == [dropped]
        store.end(connection, store.require_running(connection), "rolled_back", NOW, "bad", {})
        assert superfluous(connection, 1) == sorted([kept, dropped])
