"""A real device lives a life with canaries in everything it hears; they are searched for in all it leaves behind."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from tests.architecture.sources import ROOT
from tests.device_sdk.privacy import canaries
from tests.device_sdk.privacy.canaries import Needles
from tests.device_sdk.privacy.life import KEY, LEAKS, Notes
from tests.device_sdk.state.audit import findings
from tests.live import LiveServer, Tap
from tests.speech import packaged


@dataclass(frozen=True)
class Left:
    """What a life left behind: its notes, and every file by where it lay."""

    notes: Notes
    files: dict[str, bytes]

    def found(self) -> dict[str, set[str]]:
        """file -> canaries found in it, or in its name."""
        notes = self.notes
        planted = [*map(canaries.text, sorted(notes.texts))]
        planted += [canaries.numbers(f"sound {number}", each) for number, each in enumerate(notes.sounds)]
        planted += [canaries.numbers(f"features {number}", each) for number, each in enumerate(notes.features)]
        planted += [canaries.tokens(f"pieces {each}", each) for each in sorted(notes.pieces)]
        needles = Needles(planted)
        found = {name: needles.found(name.encode() + content) for name, content in self.files.items()}
        return {name: what for name, what in found.items() if what}


def lived(folder: Path, bundle: Bundle, *options: str) -> Left:
    """Runs a whole life. Searched: state folder as the end left it, temporary, home and working folders, both outputs,
    the server's database, blobs and log, and every byte on the line between them."""
    for name in ("tmp", "home", "work", "output"):
        (folder / name).mkdir(parents=True)
    notes = folder.parent / f"{folder.name}.notes"
    with LiveServer(folder / "server", bundle.path) as server, Tap(server.url, folder / "line") as tap:
        arguments = [str(bundle.path), str(folder / "state"), tap.url, server.url, str(notes), *options]
        with (folder / "output" / "stdout").open("wb") as out, (folder / "output" / "stderr").open("wb") as err:
            command = [sys.executable, "-m", "tests.device_sdk.privacy.life", *arguments]
            own = _environment(PYTHONPATH=ROOT, TMPDIR=folder / "tmp", HOME=folder / "home")
            ended = subprocess.run(command, cwd=folder / "work", env=own, stdout=out, stderr=err, timeout=540)
        assert ended.returncode == 0, (folder / "output" / "stderr").read_text()[-4000:]
        server.stop()
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return Left(Notes(**pickle.loads(notes.read_bytes())), files)


def _environment(**paths: Path) -> dict[str, str]:
    """Without what keeps onnxruntime from reporting: that is for the device to do."""
    silent = {"CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "XDG_CACHE_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    return kept | {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module", params=["tiny", pytest.param("packaged", marks=pytest.mark.slow)])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle) -> Iterator[Bundle]:
    yield tiny_bundle if request.param == "tiny" else packaged()


def test_no_canary_is_left_anywhere(bundle: Bundle, tmp_path: Path) -> None:
    left = lived(tmp_path / "life", bundle)
    notes, files = left.notes, left.files
    # What could not be found because it never happened would prove nothing.
    assert notes.done["feedback"] == 14 and notes.done["steps"] >= 8
    assert notes.done["marginals sent"] == notes.done["deltas sent"] == notes.done["models"] == 1
    assert notes.done["refused"] >= 1 and notes.done["errors"] >= 24 and notes.done["unlisted words counted"] >= 4
    assert len(notes.sounds) >= 40 and len(notes.features) >= 80 and len(notes.pieces) >= 8
    assert files["output/stderr"].count(b"Traceback (most recent call last)") > notes.done["errors"]
    assert b"DEBUG:httpcore" in files["output/stderr"]
    assert {"state/state.sqlite", "state/state.sqlite-wal", "server/server.db"} <= set(files)
    assert any(name.endswith(".up") and b"/marginals HTTP" in content for name, content in files.items())
    assert [name for name in files if name.startswith(("home/", "tmp/", "work/"))] == [], "files outside the state"
    assert left.found() == {} and findings(tmp_path / "life" / "state", KEY, bundle) == []


def test_a_device_that_leaks_is_found_out(tiny_bundle: Bundle, tmp_path: Path) -> None:
    found = lived(tmp_path / "life", tiny_bundle, "--leak").found()
    assert len(found) == len(LEAKS) - 1, "the log and the message are in one output"
    assert any("borborygmus wizardry" in what for what in found["output/stderr"])
    assert any("zugzwang xylophonist" in what for what in found["output/stderr"])
    assert any(what.startswith("features 0 ") for what in found["state/notes.bin"])
    assert any("utf-16-le" in what for name in found if "state.sqlite" in name for what in found[name])
    assert any("inflated" in what for name in found if name.startswith("tmp/") for what in found[name])
    assert any(what.startswith("pieces") for name in found if name.endswith(".up") for what in found[name])
