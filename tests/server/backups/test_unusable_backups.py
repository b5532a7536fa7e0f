"""A backup that could not be brought back is none: it is refused when it is made, and found when it is looked at."""

from contextlib import closing
from pathlib import Path

import pytest

from device_sdk import cli
from server.registry.retention import remove_old
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from tests.forks import idiolect
from tests.server.backups.machine import VALUES, Machine, delta
from tests.server.parties import HEADERS

PLAN = {"marginals": None, "deltas": {"clip_norm": 100.0}}


def lived(machine: Machine) -> str:
    """One round behind it, which made a model, and one under way. Returns the model's digest."""
    party = machine.party()
    first = machine.operator.open(**PLAN)
    assert party.send_delta(first, delta(0.5)).status_code == 200
    assert machine.operator.close(first)["state"] == "published"
    version = machine.operator.get("status")["model_version"]
    assert party.send_delta(machine.operator.open(**PLAN), delta(0.25), model_version=version).status_code == 200
    return str({each["version"]: each for each in machine.operator.get("models")["models"]}[version]["sha256"])


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def weights(machine: Machine, digest: str) -> Path:
    return machine.blobs / "models" / f"{digest}.safetensors"


@pytest.mark.parametrize("spoiled", ["database", "folder", "empty folder", "lost weights", "damaged weights"])
def test_what_cannot_be_saved_whole_is_refused(machine: Machine, spoiled: str) -> None:
    with machine.running():
        file, database, blobs = weights(machine, lived(machine)), machine.database, machine.blobs
        match spoiled:
            case "database":
                database = str(machine.folder / "sever.db")
            case "folder":
                blobs = machine.folder / "blob"
            case "empty folder":
                blobs = machine.folder / "empty"
                blobs.mkdir()
            case "lost weights":
                file.unlink()
            case "damaged weights":
                flip(file, -5)
        before = {path for path in machine.folder.rglob("*") if "probes" not in path.parts}
        made = idiolect("backup", machine.folder / "server.tar", "--database", database, "--blobs", str(blobs))
        assert made.returncode == 1, made.stdout + made.stderr
        assert made.stderr.count("\n") == 1 and "Traceback" not in made.stderr, "it says in one line what is wrong"
        new = {path for path in machine.folder.rglob("*") if "probes" not in path.parts} - before
        assert not new, "neither an archive nor a database is left behind"


def test_weights_that_retention_removed_are_no_loss(machine: Machine, tmp_path: Path) -> None:
    """They are known to be gone; what is gone beside them is not."""
    with machine.running() as operator:
        party = machine.party()
        for value in (0.1, 0.2, 0.3, 0.4):
            version = operator.get("status")["model_version"]
            round_id = operator.open(**PLAN)
            assert party.send_delta(round_id, delta(value), model_version=version).status_code == 200
            assert operator.close(round_id)["state"] == "published"
        models = [each["sha256"] for each in operator.get("models")["models"]]
    with closing(Database(f"sqlite:///{machine.database}")) as database, database.write() as connection:
        assert remove_old(connection, FolderBlobs(machine.blobs), 2, 0.0) == 2
    assert idiolect("backup", tmp_path / "server.tar", *machine.place).returncode == 0
    assert idiolect("backup", "--verify", tmp_path / "server.tar").returncode == 0
    weights(machine, models[0]).unlink()
    assert idiolect("backup", tmp_path / "again.tar", *machine.place).returncode == 1


@pytest.mark.parametrize("count", [10, pytest.param(40, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_a_flipped_bit_anywhere_is_found(machine: Machine, tmp_path: Path, count: int) -> None:
    """In a table, in weights, in the archive's own headers and in the gaps between."""
    archive = tmp_path / "server.tar"
    with machine.running():
        lived(machine)
        assert idiolect("backup", archive, *machine.place).returncode == 0
    before = sorted(tmp_path.iterdir())
    found = idiolect("backup", "--verify", archive)
    assert (found.returncode, "can be restored" in found.stdout) == (0, True), found.stderr
    assert idiolect("backup", "--verify", tmp_path / "missing.tar").returncode == 1
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"
    size = archive.stat().st_size
    for place in sorted({*range(0, size, max(1, size // count)), size - 1, size - 600}):
        flip(archive, place, place % 8)
        assert cli.main(["backup", "--verify", str(archive)]) == 1, f"byte {place} of {size}"
        assert cli.main(["restore", str(archive), "--database", str(tmp_path / "no.db")]) == 1
        flip(archive, place, place % 8)
    archive.write_bytes(archive.read_bytes()[:-1])
    assert cli.main(["backup", "--verify", str(archive)]) == 1, "cut off"


def test_a_round_on_a_damaged_base_is_not_published(machine: Machine) -> None:
    with machine.running() as operator:
        party, operator_http = machine.party(), machine.http
        round_id = operator.open(**PLAN)
        assert party.send_delta(round_id, delta(0.5)).status_code == 200
        base = operator.get("models")["models"][0]
        path = weights(machine, base["sha256"])
        flip(path, path.stat().st_size - 4 * VALUES // 2 + 2, 3)
        operator_http.post(f"{machine.process.url}/v1/operator/rounds/{round_id}/close", headers=HEADERS)
        found = operator.get(f"rounds/{round_id}")
        assert (found["state"], found["model_version"]) in {("closing", None), ("abandoned", None)}
        assert operator.get("status")["model_version"] == base["version"]
        fetched = operator_http.get(f"{machine.process.url}/v1/models/{base['version']}")
        assert fetched.status_code == 500, "damage is not served either"
        ready = operator_http.get(f"{machine.process.url}/readyz")
        assert (ready.status_code, ready.json()["checks"]["model"]) == (503, False)
