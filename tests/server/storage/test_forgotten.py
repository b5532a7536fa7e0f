"""What a round has used is gone from every file when it has ended: words, counts, deltas and keys, in each form in
which they are written, and what was measured on single devices. Looked for in the files of servers that run."""

import json
import os
import secrets
import stat
import struct
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, text

from server.settings import database_url
from server.storage.database import Database
from server.storage.schema import ledger, release_keys, reports, rounds
from tests.forks import idiolect
from tests.server.backups.machine import VALUES, Machine
from tests.server.parties import Party, until
from tests.server.postgres import postgres_server

IDIOLECT = [sys.executable, "-m", "device_sdk.cli"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
ROUNDS = 10
SECONDS = 60.0
"""Within which what a round has used is gone."""


class Planted:
    """What devices sent and what was secret, each distinctive, in every form in which it may be written."""

    def __init__(self) -> None:
        self.raw: dict[str, bytes] = {}

    def counts(self, what: str, counts: dict[int, int]) -> None:
        values = list(counts.values())
        for name, marks in (("JSON", (", ", ": ")), ("compact", (",", ":"))):
            written = json.dumps({str(word): count for word, count in counts.items()}, separators=marks)
            self.raw[f"{what}, {name}"] = written[1:-1].encode()
        for kind in ("<%dH", "<%dI", "<%dq", "<%dd", ">%dI", ">%dq"):
            self.raw[f"{what}, packed {kind}"] = struct.pack(kind % len(values), *values)

    def found(self, paths: Iterable[Path]) -> list[str]:
        found = []
        for path in paths:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            for what, raw in self.raw.items():
                forms = {"raw": raw, "hex": raw.hex().encode(), "HEX": raw.hex().upper().encode()}
                for start in range(3):  # wherever it begins in a longer text
                    forms[f"base64+{start}"] = b64encode(b"\0" * start + raw)[4 if start else 0 :].rstrip(b"=")[:-1]
                found += [f"{what} ({form}) in {path.name}" for form, wanted in forms.items() if wanted in content]
        return found


def planted_round(machine: Machine, parties: list[Party], number: int, planted: Planted) -> str:
    """One round of every stream, in which devices send what is looked for."""
    operator = machine.operator
    version = operator.get("status")["model_version"]
    streams = {"marginals": {"epsilon": 1.0, "max_words": 40}, "words": {"epsilon": 1.0}, "deltas": {"clip_norm": 1e8}}
    round_id = operator.open(**streams, sampling={"kind": "poisson", "rate": 1.0})
    rng = np.random.default_rng(number)
    for index, party in enumerate(parties):
        chosen = rng.permutation(40)[: int(rng.integers(12, 36))]
        counts = {int(word): int(count) for word, count in zip(chosen, rng.integers(17, 256, chosen.size), strict=True)}
        planted.counts(f"counts {number}.{index}", counts)
        assert party.send_counts(round_id, counts).status_code == 200
        word = "x" + "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 14))
        planted.raw[f"word {number}.{index}"] = word.encode()
        assert party.send_words(round_id, word).status_code == 200
        delta = rng.normal(size=VALUES).astype(np.float32)
        planted.raw[f"delta {number}.{index}"] = delta[:8].tobytes()
        sent = party.send_delta(round_id, {"w": delta}, model_version=version, utterances=424242 - number)
        assert sent.status_code == 200, sent.text
    return round_id


def opened(machine: Machine) -> Database:
    return Database(database_url(machine.database), connections=2)


def watch_keys(machine: Machine, planted: Planted) -> None:
    """Every key that is stored while rounds are about to end, at the moment at which it is."""
    with closing(opened(machine)) as database, database.read() as connection:
        for kind, secret in (("noise", release_keys.c.key), ("sampling", rounds.c.sampling_key)):
            for row in connection.execute(select(secret.table.c.id, secret.label("key")).where(secret.is_not(None))):
                planted.raw[f"{kind} key {row.id}"] = bytes(row.key)


def keys_in(paths: Iterable[Path], digests: set[str]) -> list[str]:
    """Files that hold a key of 32 bytes of which only the digest is known."""
    wanted, found = {bytes.fromhex(digest) for digest in digests}, []
    for path in paths:
        content = path.read_bytes()
        windows = (content[start : start + 32] for start in range(len(content) - 31))
        if any(sha256(window).digest() in wanted for window in windows):
            found.append(path.name)
    return found


def eventually(looked: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + SECONDS
    while (found := looked()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def lived(machine: Machine, parties: list[Party], planted: Planted, folder: Path, *kinds: str) -> Iterator[int]:
    """Rounds that end one way or the other: their numbers, before each ends. kinds: of what is in the folder first."""
    for number in range(ROUNDS):
        round_id = planted_round(machine, parties, number, planted)
        watch_keys(machine, planted)
        if number == 0:  # what is looked for can be found
            there = {found.partition(" ")[0] for found in planted.found(files(folder))}
            assert there and there >= set(kinds), there
        yield number
        ended = "abandon" if number % 4 == 3 else "close"
        assert machine.operator.post(f"rounds/{round_id}/{ended}")["state"] in {"published", "abandoned"}


def test_nothing_of_ten_rounds_is_left_in_the_files_of_a_running_server(machine: Machine, tmp_path: Path) -> None:
    """While devices go on checking in, and a backup is taken in the middle of the last round."""
    planted = Planted()
    with machine.running():
        parties = [machine.party() for _ in range(4)]
        for number in lived(machine, parties, planted, machine.folder, "counts", "word", "delta", "sampling"):
            if number == ROUNDS - 1:
                assert idiolect("backup", tmp_path / "server.tar", *machine.place).returncode == 0
            for party in parties:
                assert party.check_in().status_code == 200
        assert eventually(lambda: planted.found(files(machine.folder, tmp_path))) == []
        with closing(opened(machine)) as database, database.read() as connection:
            digests = set(connection.execute(select(release_keys.c.key_sha256)).scalars())
        assert len(digests) >= ROUNDS
        assert keys_in([Path(machine.database), Path(machine.database + "-wal")], digests) == []


def test_a_killed_server_forgets_when_it_starts_again(machine: Machine) -> None:
    """Killed right after a round was cleared, with its contents still in the log that the database writes ahead."""
    planted = Planted()
    with machine.running() as operator:
        round_id = planted_round(machine, [machine.party() for _ in range(2)], 1, planted)
        watch_keys(machine, planted)
        reader = opened(machine)  # somebody reads on, so that the log cannot be cut off
        with reader.read() as connection:
            connection.execute(select(reports.c.id)).all()
            assert operator.close(round_id)["state"] == "published"
            log = Path(machine.database + "-wal")
            assert planted.found([log]), "it is there while somebody reads what was"
            kept = log.read_bytes(), Path(machine.database).read_bytes()
    reader.close()
    log.write_bytes(kept[0])  # as the kill left it; closing the reader cleaned up
    Path(machine.database).write_bytes(kept[1])
    with machine.running():
        assert eventually(lambda: planted.found(files(machine.folder))) == []


def test_a_reader_puts_it_off_and_does_not_prevent_it(machine: Machine) -> None:
    planted = Planted()
    with machine.running() as operator:
        parties = [machine.party() for _ in range(2)]
        round_id = planted_round(machine, parties, 2, planted)
        reader = opened(machine)
        with reader.read() as connection:
            connection.execute(select(reports.c.id)).all()
            begun = time.monotonic()
            assert operator.close(round_id)["state"] == "published"
            for party in parties:
                assert party.check_in().status_code == 200
            assert time.monotonic() - begun < 5, "and nobody waits for it"
            time.sleep(1.5)
        reader.close()
        assert eventually(lambda: planted.found(files(machine.folder))) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_nothing_of_ten_rounds_is_left_in_the_files_of_postgresql(tmp_path: Path) -> None:
    """With what the guide asks of its administrator: the log that it writes ahead is neither kept nor used again."""
    with postgres_server(own=True) as url, closing(Machine(tmp_path / "machine", url)) as machine:
        place, planted = _prepared(url), Planted()
        with machine.running():
            list(lived(machine, [machine.party() for _ in range(3)], planted, place))
            assert eventually(lambda: planted.found(files(place, tmp_path))) == []


def _prepared(url: str) -> Path:
    """The folder of PostgreSQL's files."""
    database = Database(url, connections=2)
    connection = database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    connection.execute(text("ALTER SYSTEM SET wal_recycle = off"))
    connection.execute(text("SELECT pg_reload_conf()"))
    place = Path(str(connection.execute(text("SHOW data_directory")).scalar_one()))
    connection.close()
    database.close()
    return place


def test_measures_of_single_devices_end_with_their_round(tmp_path: Path, place: str) -> None:
    """How many utterances, how long a body, when: while a round needs them, and no longer; a charge knows its day."""
    with closing(Machine(tmp_path / "machine", place)) as machine, machine.running() as operator:
        party = machine.party()
        for end in ("close", "abandon"):
            version = operator.get("status")["model_version"]
            deltas = {"clip_norm": 1e8, "measure": "word_error"}
            round_id = operator.open(marginals=None, deltas=deltas, weighting="word_errors")
            arrays = {"w": np.full(VALUES, 0.5, np.float32)}
            sent = party.send_delta(round_id, arrays, model_version=version, utterances=77, word_error=0.625)
            assert sent.status_code == 200, sent.text
            operator.post(f"rounds/{round_id}/{end}")
        with closing(opened(machine)) as database, database.read() as connection:
            for row in connection.execute(select(reports)):
                measured = (row.utterances, row.size, row.accepted_at, row.loss, row.word_error)
                assert not any(measured), measured
            for row in connection.execute(select(ledger)):
                assert row.charged_at % 86_400 == 0


def test_what_the_server_writes_is_its_users_alone(tmp_path: Path) -> None:
    """Under the loosest mask, and where others could read it before."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    command = [*IDIOLECT, "serve", "--port", "0", "--host", "127.0.0.1"]
    command += ["--database", str(folder / "server.db"), "--ready-file", str(folder / "ready.json")]
    for loosened in (False, True):
        if loosened:
            for path in folder.rglob("*"):
                path.chmod(0o777 if path.is_dir() else 0o666)
        process = subprocess.Popen(command, umask=0, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        try:
            until(lambda ended=process.poll: (folder / "ready.json").exists() or ended() is not None, 120)
            assert process.poll() is None
            save = [*IDIOLECT, "backup", str(folder / "server.tar"), "--database", str(folder / "server.db")]
            assert subprocess.run(save, umask=0, env=ENVIRONMENT, stdout=subprocess.DEVNULL).returncode == 0
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
        finally:
            process.terminate()
            process.wait(60)
        assert {"server.db", "server.db-wal", "server.tar"} <= modes.keys()
        assert [name for name, mode in modes.items() if mode & 0o077] == [], f"loosened: {loosened}"


def test_forms_that_are_looked_for_are_found(tmp_path: Path) -> None:
    planted, key = Planted(), secrets.token_bytes(32)
    planted.raw["key"] = key
    planted.counts("counts", {1: 200, 7: 31})
    packed, text = struct.pack("<2q", 200, 31), b'{"1": 200, "7": 31}'
    for content in (key, key.hex().encode(), b64encode(key), b64encode(b"ab" + key), text, b"x" + packed):
        (tmp_path / "file").write_bytes(b"before" + content + b"after")
        assert planted.found([tmp_path / "file"]), content
    (tmp_path / "file").write_bytes(b"nothing")
    (tmp_path / "file").write_bytes(b"nothing" + key)
    assert keys_in([tmp_path / "file"], {sha256(key).hexdigest()}) == ["file"]
