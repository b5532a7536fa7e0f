"""A backup taken in the middle of rounds, brought back on either database, and what damage is told."""

import io
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from device_sdk import StateError, cli
from server.app import create_app
from server.backup import restore, save
from server.settings import database_url
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from server.storage.schema import metadata
from tests.server.parties import Operator, Party, serving, settings
from tests.server.postgres import fresh_database

DELTAS = {"deltas": {"clip_norm": 10.0}, "marginals": {"epsilon": 1e8}, "no_privacy": True}


def lived(folder: Path, database: str) -> tuple[str, dict[str, Any]]:
    """A server with one round behind it and one under way: the id of the latter, and its operator's status."""
    with serving(folder, database=database) as http:
        operator = Operator(http)
        parties = [Party(http).enrol() for _ in range(3)]
        done = operator.open(**DELTAS, goal=2)
        for party in parties[:2]:
            party.send_counts(done, {3: 200})
            assert party.send_delta(done, value=0.5).status_code == 200
        operator.close(done)
        waiting = operator.open(**DELTAS, goal=2)
        status = operator.get("status")
        assert parties[0].send_counts(waiting, {5: 100}).status_code == 200
        assert parties[0].send_delta(waiting, value=0.25, model_version=status["model_version"]).status_code == 200
        return waiting, operator.get("status")


def content(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    with database.read() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in metadata.sorted_tables
        }


@pytest.mark.parametrize("target", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
@pytest.mark.parametrize("source", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_what_is_brought_back_goes_on(tmp_path: Path, source: str, target: str, request: Any) -> None:
    before, after = (
        str(tmp_path / name) if kind == "sqlite" else fresh_database(request.getfixturevalue("postgres"))
        for name, kind in (("old.db", source), ("new.db", target))
    )
    waiting, status = lived(tmp_path, before)
    old, archive = Database(database_url(before)), tmp_path / "server.tar"
    saved = save(old, FolderBlobs(tmp_path / "blobs", tidy=False), archive)
    assert saved.rows["reports"] == 6 and saved.blobs == 2 and saved.missing == ()
    new = Database(database_url(after))
    assert restore(archive, new, FolderBlobs(tmp_path / "restored")) == saved
    earlier, later = content(old), content(new)
    for name, rows in earlier.items():
        if name not in {"reports", "rounds", "release_keys"}:  # less what was under way, and more after the fence
            assert later[name][: len(rows)] == rows, name
    assert len(later["reports"]) == 6 and len(later["rounds"]) == 3
    for database in (old, new):
        database.close()
    with TestClient(create_app(settings(tmp_path, database=after, blobs=tmp_path / "restored"))) as http:
        operator = Operator(http)
        now = operator.get("status")
        assert {name for name in status if now[name] != status[name]} == {"rounds", "marginals_version"}
        assert now["rounds"] == [] and operator.get(f"rounds/{waiting}")["state"] == "abandoned"
        opened = operator.post("rounds", json={"settings": DELTAS, "open": True})
        assert opened["number"] > 1_000_000
        party = Party(http).enrol()
        party.send_counts(opened["id"], {5: 100})
        assert party.send_delta(opened["id"], value=0.25, model_version=now["model_version"]).status_code == 200
        ended = operator.close(opened["id"])
        assert (ended["state"], ended["releases"]["deltas"]["reports"]) == ("published", 1)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    lived(tmp_path, str(tmp_path / "old.db"))
    with closing(Database(f"sqlite:///{tmp_path / 'old.db'}")) as database:
        save(database, FolderBlobs(tmp_path / "blobs", tidy=False), tmp_path / "server.tar")
    return tmp_path / "server.tar"


def changed(archive: Path, change: Any) -> None:
    """The archive with every member's bytes passed through ``change(name, content)``; None leaves a member out."""
    with tarfile.open(archive) as old:
        members = [(member.name, old.extractfile(member).read()) for member in old.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(archive, "w") as new:
        for name, bytes_ in members:
            if (found := change(name, bytes_)) is not None:
                member = tarfile.TarInfo(name)
                member.size = len(found)
                new.addfile(member, io.BytesIO(found))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name, old: None if name == "manifest.json" else old, "manifest.json"),
        (lambda name, old: old[:-40] if name == "tables/reports.jsonl" else old, "reports"),
        (lambda name, old: None if name == "tables/rounds.jsonl" else old, "rounds.jsonl is missing"),
        (lambda name, old: old[:-1] + b"x" if name.startswith("blobs/models") else old, "the backup is damaged"),
        (lambda name, old: old.replace(b'"format": 1', b'"format": 9') if name == "manifest.json" else old, "format 9"),
    ],
)
def test_a_damaged_archive_is_told_and_leaves_the_database_empty(archive, tmp_path, change: Any, message: str) -> None:
    changed(archive, change)
    with closing(Database(f"sqlite:///{tmp_path / 'new.db'}")) as database:
        with pytest.raises(StateError, match=message):
            restore(archive, database, FolderBlobs(tmp_path / "restored"))
        assert all(not rows for rows in content(database).values())


def test_no_archive_and_a_database_in_use(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used = ["--database", str(tmp_path / "old.db"), "--blobs", str(tmp_path / "blobs")]
    assert cli.main(["restore", str(archive), *used]) == 1 and "into an empty one only" in capsys.readouterr().err
    (tmp_path / "no.tar").write_bytes(b"nothing")
    assert cli.main(["restore", str(tmp_path / "no.tar"), "--database", str(tmp_path / "new.db")]) == 1
    assert "cannot be read as a backup" in capsys.readouterr().err
