"""When metadata is signed, what it says, and that it is never half there."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp

from device_sdk.errors import ConfigurationError
from server.backup import restore, save
from server.registry.initial import register_initial
from server.registry.models import add_model, publish, store
from server.settings import DAY, UpdateSettings, database_url
from server.signing import repository
from server.signing.repository import Repository
from server.signing.roots import create, rotate, sign
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from server.storage.schema import update_metadata
from tests.server.parties import DIGEST, WORDS, initial, serving, settings

NOW = 1_800_000_000.0


@dataclass
class Registry:
    folder: Path
    database: Database
    blobs: FolderBlobs
    updates: Repository
    clock: list[float]

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def publish(self, version: str, *, teacher: str | None = None, made_current: bool = True) -> str:
        stored = store(self.blobs, initial(seed=len(version)).weights, {"version": version})
        with self.database.write() as connection:
            add_model(connection, version, stored, now=self.clock[0], teacher=teacher)
            if made_current:
                publish(connection, "model", version, self.clock[0], "")
        return stored.sha256

    def read(self) -> tuple[Timestamp, Snapshot, Targets]:
        """By the path that a device goes, every step verified against the newest root."""
        number = 1
        while (content := self.updates.document(f"{number}.root.json")) is not None:
            root, number = Metadata[Root].from_bytes(content).signed, number + 1

        def get(name: str, role: str) -> Any:
            content = self.updates.document(name)
            assert content is not None, name
            found: Metadata[Any] = Metadata.from_bytes(content)
            root.verify_delegate(role, found.signed_bytes, found.signatures)
            return found.signed

        timestamp = get("timestamp.json", "timestamp")
        snapshot = get(f"{timestamp.snapshot_meta.version}.snapshot.json", "snapshot")
        return timestamp, snapshot, get(f"{snapshot.meta['targets.json'].version}.targets.json", "targets")

    def versions(self) -> tuple[int, int, int]:
        timestamp, snapshot, targets = self.read()
        return timestamp.version, snapshot.version, targets.version


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with opened(tmp_path, f"sqlite:///{tmp_path / 'server.db'}") as found:
        yield found


@contextmanager
def opened(tmp_path: Path, url: str) -> Iterator[Registry]:
    create(tmp_path / "keys", keys=2, threshold=1, days=365.0, root_passphrase=None, passphrase=None)
    database, blobs = Database(url), FolderBlobs(tmp_path / "blobs")
    clock = [NOW]
    register_initial(database, blobs, initial(), NOW)
    updates = Repository(UpdateSettings(tmp_path / "keys" / "server"), database, lambda: clock[0])
    yield Registry(tmp_path, database, blobs, updates, clock)
    database.close()


def test_targets_are_what_was_published_and_say_what_is_current(registry: Registry) -> None:
    teacher = registry.publish("teacher-1", made_current=False)
    digest = registry.publish("second", teacher="teacher-1")
    registry.publish("never-published", made_current=False)
    _, _, targets = registry.read()
    found = {name: (file.hashes["sha256"], file.custom) for name, file in targets.targets.items()}
    models = {f"models/{version}.safetensors" for version in ("base-1", "second", "teacher-1")}
    assert found.keys() == models | {"marginals/0.float64"}
    assert found["models/second.safetensors"] == (digest, {"current": True, "teacher": "teacher-1"})
    assert found["models/teacher-1.safetensors"] == (teacher, None) and found["models/base-1.safetensors"][1] is None
    assert found["marginals/0.float64"][1] == {"current": True, "words_digest": DIGEST}
    assert found["marginals/0.float64"][0] == sha256(initial().background.astype("<f8").tobytes()).hexdigest()
    assert targets.targets["marginals/0.float64"].length == 8 * WORDS
    content = registry.blobs.get(f"models/{digest}.safetensors")
    targets.targets["models/second.safetensors"].verify_length_and_hashes(content)


def test_only_what_is_due_is_signed_and_versions_only_grow(registry: Registry) -> None:
    first = registry.versions()
    assert first == (int(NOW),) * 3
    assert registry.versions() == first, "nothing has happened"
    registry.clock[0] += 0.4 * DAY
    assert registry.versions() == first, "the timestamp has more than half a day left"
    registry.clock[0] += 0.2 * DAY
    second = registry.versions()
    assert second[0] > first[0] and second[1:] == first[1:]
    registry.publish("second")
    registry.clock[0] = NOW - 10 * DAY  # whatever the clock does
    third = registry.versions()
    assert third == (second[0] + 1, first[1] + 1, first[2] + 1)
    registry.clock[0] = NOW + 20 * DAY
    assert all(new > old for new, old in zip(registry.versions(), third, strict=True))
    for signed in registry.read():
        assert signed.expires.timestamp() > registry.clock[0]


def test_a_device_between_two_versions_still_finds_what_its_timestamp_names(registry: Registry) -> None:
    before = registry.versions()
    for number in range(12):
        registry.publish("m" * (number + 1))
        registry.versions()
        assert (registry.updates.document(f"{before[2]}.targets.json") is not None) == (number < 7)
    with registry.database.read() as connection:
        kept = connection.execute(select(update_metadata.c.role)).scalars().all()
    assert {role: kept.count(role) for role in kept} == {"targets": 8, "snapshot": 8, "timestamp": 8}


def test_many_who_ask_at_once_get_the_same(tmp_path: Path, place: str) -> None:
    """One new version of everything."""
    with opened(tmp_path, database_url(place)) as registry:
        before = registry.versions()
        registry.publish("second")
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: registry.updates.document("timestamp.json"), range(16)))
        assert len(found) == 1 and registry.versions() == tuple(version + 1 for version in before)
        registry.clock[0] = NOW + 200 * DAY
        assert registry.versions() == (int(NOW + 200 * DAY),) * 3


@pytest.mark.parametrize("survives", [0, 1, 2])
def test_a_crash_while_signing_leaves_the_metadata_of_before(registry: Registry, monkeypatch, survives: int) -> None:
    before = registry.versions()
    registry.publish("second")
    written: list[str] = []
    keep = repository.keep

    def fail(connection: Any, row: repository.Row) -> None:
        if len(written) == survives:
            raise OSError("power is lost")
        written.append(row.role)
        keep(connection, row)

    with monkeypatch.context() as patched:
        patched.setattr(repository, "keep", fail)
        with pytest.raises(OSError, match="power"):
            registry.updates.renew()
    with registry.database.read() as connection:
        newest = [repository.newest(connection, role) for role in ("timestamp", "snapshot", "targets")]
    assert tuple(row.version for row in newest if row is not None) == before
    assert all(new > old for new, old in zip(registry.versions(), before, strict=True))
    assert registry.read()[2].targets["models/second.safetensors"].custom["current"]


def test_a_new_root_is_taken_up_and_what_it_revokes_signs_no_more(registry: Registry) -> None:
    before = registry.versions()
    rotate(registry.keys, role="snapshot", days=30.0)
    assert registry.versions() == before, "a proposal is none"
    assert sign(registry.keys, registry.keys / "root-2.pem", None).missing == 0
    after = registry.versions()  # verified against the new root
    assert after[0] > before[0] and after[1] > before[1] and after[2] == before[2]
    assert registry.updates.document("2.root.json") is not None and registry.updates.document("3.root.json") is None


def test_a_root_that_is_not_in_order_is_left_alone(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    before = registry.versions()
    (registry.keys / "server" / "roots" / "2.root.json").write_bytes(b"{half")
    assert registry.versions() == before and "the root before stays" in caplog.text and "2.root.json" in caplog.text
    assert registry.updates.document("2.root.json") is None
    with pytest.raises(ConfigurationError, match="cannot be read as a root"):
        Repository(UpdateSettings(registry.keys / "server"), registry.database, lambda: NOW)


def test_a_server_without_the_keys_of_its_root_does_not_start(registry: Registry) -> None:
    (registry.keys / "server" / "keys" / "targets.pem").unlink()
    with pytest.raises(ConfigurationError, match="no key of role targets in root 1"):
        Repository(UpdateSettings(registry.keys / "server"), registry.database, lambda: NOW)


def test_a_restored_backup_goes_on_above_what_devices_have_seen(registry: Registry, tmp_path: Path) -> None:
    registry.versions()
    save(registry.database, registry.blobs, tmp_path / "old.tar")
    registry.clock[0] += DAY
    registry.publish("after-the-backup")
    seen = registry.versions()
    database = Database(f"sqlite:///{tmp_path / 'restored.db'}")
    restore(tmp_path / "old.tar", database, FolderBlobs(tmp_path / "restored"))
    registry.clock[0] += 60.0
    updates = Repository(UpdateSettings(registry.keys / "server"), database, lambda: registry.clock[0])
    again = replace(registry, database=database, updates=updates)
    again.publish("another")
    assert all(new > old for new, old in zip(again.versions(), seen, strict=True))
    database.close()


@pytest.mark.parametrize(
    "name", ["", "root.json", "0.root.json", "01.root.json", "9.root.json", "1.timestamp.json", "../keys/targets.pem",
             "targets.pem", "1.targets.json\n", f"{10**30}.snapshot.json"],
)  # fmt: skip
def test_nothing_else_has_a_name(registry: Registry, name: str) -> None:
    assert registry.updates.document(name) is None


def test_the_route_serves_metadata_and_nothing_where_there_are_no_keys(tmp_path: Path) -> None:
    from server.app import create_app

    create(tmp_path / "keys", keys=1, threshold=1, days=1.0, root_passphrase=None, passphrase="a phrase")
    with serving(tmp_path / "a", updates=UpdateSettings(tmp_path / "keys" / "server", "a phrase")) as http:
        answer = http.get("/v1/updates/timestamp.json")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
        assert json.loads(answer.content)["signed"]["_type"] == "timestamp"
        answer = http.get("/v1/updates/1.root.json")
        assert "immutable" in answer.headers["cache-control"]
        assert answer.content == (tmp_path / "keys" / "server" / "roots" / "1.root.json").read_bytes()
        for name in ("2.root.json", "x", "%00"):
            assert http.get(f"/v1/updates/{name}").json()["code"] == "unknown_metadata"
    with serving(tmp_path / "b") as http:
        assert http.get("/v1/updates/timestamp.json").status_code == 404
    with pytest.raises(ConfigurationError, match="no passphrase is set"):
        create_app(settings(tmp_path / "c", updates=UpdateSettings(tmp_path / "keys" / "server")), initial())


@pytest.mark.parametrize("name", ["timestamp", "snapshot", "targets"])
def test_lifetimes_are_checked(name: str) -> None:
    changes: dict[str, Any] = {name: 0.0}
    with pytest.raises(ConfigurationError, match=rf"updates\.{name}: found 0"):
        UpdateSettings(Path("keys"), **changes)
