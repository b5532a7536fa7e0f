"""What damaged inputs are made from, and what is looked at once a device had one."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from device_sdk import Bundle, DecodingSettings, Device, DeviceSettings, IdiolectError, LearningSettings, Result
from device_sdk.checkin import identity
from device_sdk.state import outbox, records
from tests.bounds import ANYTHING
from tests.device_sdk.devices import KEY, LIGHT
from tests.signals import chirp

SERVER = "https://server.example"
SETTINGS = DeviceSettings(
    bounds=ANYTHING,
    decoding=DecodingSettings(beam=4, nbest=4),
    learning=LearningSettings(passes=1, replays=0, hypotheses=2, wait_seconds=0.0),
)
SOUND = chirp(6_400, 3)
LONG_TEXT = 10_000

Rows = dict[tuple[str, str], bytes]


class Wrong(Exception):
    """A case that ended in neither a named error nor a valid result, or changed the state folder."""


@dataclass(frozen=True)
class Ground:
    """A whole bundle, and the files of a device that has learned. scratch: a folder that every case finds empty."""

    bundle: Bundle
    bundle_files: dict[str, bytes]
    state_files: dict[str, bytes]
    scratch: Path

    @classmethod
    def lay(cls, bundle_folder: Path, scratch: Path) -> Ground:
        bundle, state = Bundle.open(bundle_folder), scratch / "whole"
        with Device.open(state, KEY, bundle, SETTINGS) as device:
            for seed in range(2):
                device.feedback(device.recognize(chirp(4_800, seed), 16_000), LIGHT)
            device.learn()
            device.recognize(SOUND, 16_000)
            records.write_marginals(device._store, 3, bundle.words.digest, bundle.background)
            outbox.keep(device._store, outbox.Outgoing("r1", SERVER, "marginals", "round", b"body", b"rest"))
            identity.keep_id(device._store, identity.create(device._store, SERVER), "device-1")
        whole = cls(bundle, contents(bundle_folder), contents(state), scratch)
        shutil.rmtree(state)
        return whole

    def state(self, files: dict[str, bytes] | None = None) -> Path:
        """A folder of the device's files, or of these."""
        return write(self.scratch / "state", self.state_files if files is None else files)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def valid(result: Result) -> None:
    if not result.nbest:
        raise Wrong("a result without a hypothesis")
    for hypothesis in result.nbest:
        valid_text(hypothesis.text)
        scores = hypothesis.scores
        parts = (hypothesis.score, scores.acoustic, scores.ngram, scores.neural, scores.personal, scores.hotword)
        if not all(map(math.isfinite, parts)):
            raise Wrong(f"a score that is not finite: {parts}")
        if not all(0.0 <= word.start <= word.end and math.isfinite(word.end) for word in hypothesis.words):
            raise Wrong(f"word times {[(word.start, word.end) for word in hypothesis.words]}")


def valid_text(text: str) -> None:
    text.encode()
    if len(text) > LONG_TEXT:
        raise Wrong(f"a text of {len(text)} characters for a second of audio")


def rows(state: Path) -> Rows:
    """Every sealed value of a state folder, read beside its owner."""
    with closing(sqlite3.connect(f"file:{state / 'state.sqlite'}?mode=ro", uri=True)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            (table, name): value or (state / file[0]).read_bytes()
            for table in tables
            if table != "sqlite_sequence"
            for name, value, *file in connection.execute(
                f"SELECT name, value{'' if table == 'meta' else ', file'} FROM {table}"
            )
        }


def check_same(before: Rows, state: Path, when: str, counts: bool = True) -> None:
    after = rows(state)
    changed = [place for place in before.keys() | after.keys() if before.get(place) != after.get(place)]
    if changed := [place for place in changed if counts or place[0] != "counts"]:
        raise Wrong(f"{when}, but the state folder changed: {sorted(changed)}")


@contextmanager
def unchanged(before: Rows, state: Path, when: str) -> Iterator[None]:
    """What fails inside leaves the state as it was."""
    try:
        yield
    except IdiolectError:
        check_same(before, state, when)
        raise
