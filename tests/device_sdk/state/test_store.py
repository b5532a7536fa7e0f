import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from device_sdk.errors import StateError
from device_sdk.state import TABLES, Cipher, Store
from device_sdk.state.store import FILED_BYTES
from tests.device_sdk.devices import KEY

LARGE = 3 * FILED_BYTES


def reopened(store: Store) -> Store:
    store.close()
    return Store(store.folder, KEY)


def sql(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "state.sqlite")) as connection, connection:
        connection.execute(statement)


def sealed_files(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.folder.glob("*.sealed")}


def test_values_come_back_after_closing(store: Store) -> None:
    for table in TABLES:
        store.put(table, "b", table.encode())
        store.put(table, "a", b"first")
        store.put(table, "a", b"")
    store.delete("counts", "b")
    store.close()  # twice is harmless
    with closing(reopened(store)) as store:
        assert (store.names("counts"), store.names("outbox")) == (["a"], ["b", "a"])
        assert (store.get("counts", "a"), store.get("counts", "b")) == (b"", None)
        assert store.get("weights", "b") == b"weights"
    with pytest.raises(StateError):
        store.get("counts", "a")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (bytes(32), "found another key"),
        (b"short", "found 5 bytes"),
        ("a text of many words", "found str"),
    ],
)
def test_another_key_is_refused(tmp_path: Path, key: bytes, words: str) -> None:
    Store(tmp_path, KEY).close()
    with pytest.raises(StateError, match=words):
        Store(tmp_path, key)
    Store(tmp_path, KEY).close()  # the failed try left no lock behind


def test_one_owner_at_a_time(store: Store) -> None:
    with pytest.raises(StateError, match="in use"):
        Store(store.folder, KEY)
    code = "import sys; from device_sdk.state import Store; Store(sys.argv[1], bytes(range(32)))"
    other = subprocess.run([sys.executable, "-c", code, store.folder], capture_output=True, text=True, check=False)
    assert other.returncode != 0 and "in use" in other.stderr
    reopened(store).close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (None, r"state\.sqlite"),
        ("PRAGMA user_version = 2", "schema version: found 2, expected 1; use the idiolect that wrote it"),
        ("DELETE FROM meta WHERE name = 'salt'", "table meta"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: str | None, words: str) -> None:
    Store(tmp_path, KEY).close()
    if damage is None:
        (tmp_path / "state.sqlite").write_bytes(b"not a database" * 1000)
    else:
        sql(tmp_path, damage)
    with pytest.raises(StateError, match=words):
        Store(tmp_path, KEY)
    with pytest.raises(StateError, match="cannot be used"):
        Store(tmp_path / "lock", KEY)


def test_values_cannot_be_swapped(store: Store) -> None:
    store.put("counts", "a", b"one")
    store.put("settings", "a", b"two")
    store.close()
    sql(store.folder, "UPDATE settings SET value = (SELECT value FROM counts WHERE name = 'a')")
    with closing(reopened(store)) as store:
        assert store.get("counts", "a") == b"one"
        with pytest.raises(StateError, match="settings/a"):
            store.get("settings", "a")


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    store.put("counts", "a", b"before")
    with pytest.raises(RuntimeError), store.transaction():
        store.put("counts", "a", b"after")
        with store.transaction():
            store.put("weights", "local", b"new")
        raise RuntimeError
    assert (store.get("counts", "a"), store.get("weights", "local")) == (b"before", None)
    with store.transaction():
        store.put("counts", "a", b"after")
        store.put("weights", "local", b"new")
    assert (store.get("counts", "a"), store.get("weights", "local")) == (b"after", b"new")
    with pytest.raises(StateError, match="table: found 'audio'"):
        store.put("audio", "a", b"")


def test_a_full_disk_is_named_and_changes_nothing(store: Store) -> None:
    store.put("counts", "a", b"before")
    pages = store._run("PRAGMA page_count").fetchone()[0]
    store._run(f"PRAGMA max_page_count = {pages + 3}")
    for _ in range(2):
        with pytest.raises(StateError, match="full"), store.transaction():
            store.put("counts", "a", b"after")
            store.put("counts", "b", bytes(500_000))
        assert store.get("counts", "a") == b"before"
    store.put("counts", "a", b"after")
    assert store.get("counts", "a") == b"after"


def test_large_weights_and_reports_lie_in_files_of_their_own(store: Store) -> None:
    store.put("weights", "local", b"1" * LARGE)
    (first,) = sealed_files(store)
    store.put("weights", "local", b"2" * LARGE)
    store.put("weights", "teacher", b"small")
    store.put("outbox", "r1", b"3" * LARGE)
    store.put("counts", "cache", b"4" * LARGE)
    assert len(sealed_files(store)) == 2 and first not in sealed_files(store)
    assert (store.folder / "state.sqlite-wal").stat().st_size < 5 * LARGE
    with closing(reopened(store)) as store:
        assert (store.get("weights", "local"), store.get("outbox", "r1")) == (b"2" * LARGE, b"3" * LARGE)
        store.put("weights", "local", b"small again")
        store.delete("outbox", "r1")
        assert (sealed_files(store), store.get("weights", "local")) == ({}, b"small again")


def test_a_file_belongs_to_the_state_only_once_its_row_is_committed(store: Store) -> None:
    store.put("weights", "local", b"1" * LARGE)
    before = sealed_files(store)
    with pytest.raises(RuntimeError), store.transaction():
        store.put("weights", "local", b"2" * LARGE)
        store.delete("weights", "local")
        store.put("weights", "teacher", b"3" * LARGE)
        assert len(sealed_files(store)) == 3
        raise RuntimeError
    assert (sealed_files(store), store.get("weights", "local")) == (before, b"1" * LARGE)
    (store.folder / ("0" * 32 + ".sealed")).write_bytes(b"left by a process that was killed")
    (store.folder / "notes.txt").write_bytes(b"not ours")
    with closing(reopened(store)) as store:
        assert sealed_files(store) == before and (store.folder / "notes.txt").exists()


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["no file", "an empty one"])
def test_a_lost_database_takes_no_sealed_files_with_it(store: Store, lost: Callable[[Path], object]) -> None:
    store.put("weights", "local", b"1" * LARGE)
    before, database = sealed_files(store), store.folder / "state.sqlite"
    store.close()
    kept = database.read_bytes()
    lost(database)
    with pytest.raises(StateError, match="1 sealed files of one beside it; put the file back from a copy, or delete"):
        Store(store.folder, KEY)
    assert sealed_files(store) == before
    database.write_bytes(kept)
    with closing(Store(store.folder, KEY)) as store:
        assert store.get("weights", "local") == b"1" * LARGE


def test_files_cannot_be_swapped_lost_or_pointed_elsewhere(store: Store) -> None:
    store.put("weights", "local", b"1" * LARGE)
    (first,) = sealed_files(store)
    store.put("weights", "teacher", b"2" * LARGE)
    one, other = (sealed_files(store)[name] for name in (first, *(sealed_files(store).keys() - {first})))
    file, pointed = store.folder / first, "UPDATE weights SET file = '../../other' WHERE name = 'local'"
    for change, words in (
        (lambda: file.write_bytes(other), f"weights/local/{first}: .*cannot be decrypted"),
        (lambda: file.write_bytes(one[:-1]), "cannot be decrypted"),
        (file.unlink, "weights/local: the file of its value cannot be read"),
        (lambda: store._run(pointed), "weights/local: found no name of a file"),
    ):
        change()
        with pytest.raises(StateError, match=words):
            store.get("weights", "local")
    store.put("weights", "local", b"mended")
    assert store.get("weights", "local") == b"mended"


@pytest.mark.parametrize("name", ["open", "fsync"])
def test_a_file_or_folder_that_cannot_be_written_changes_nothing(store: Store, monkeypatch, name: str) -> None:
    store.put("weights", "local", b"1" * LARGE)
    before, call = sealed_files(store), getattr(os, name)

    def failing(what: object, *arguments: int) -> int:
        if what == store.folder or name == "fsync":
            raise OSError(5, "Input/output error")
        return call(what, *arguments)

    with monkeypatch.context() as patch, pytest.raises(StateError, match=r"cannot be written: .*Input/output"):
        patch.setattr(os, name, failing)
        with store.transaction():
            store.put("settings", "a", b"with it")
            store.put("weights", "local", b"2" * LARGE)
    assert (sealed_files(store), store.get("settings", "a")) == (before, None)
    assert store.get("weights", "local") == b"1" * LARGE


@pytest.mark.parametrize("failure", ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)", "DELETE FROM meta WHERE", None])
def test_erase_leaves_nothing_and_an_erasure_cut_short_is_finished(store, monkeypatch, failure) -> None:
    store.put("weights", "local", os.urandom(LARGE))
    store.put("counts", "cache", os.urandom(LARGE))
    before = (store.folder / "state.sqlite-wal").read_bytes() + (store.folder / "state.sqlite").read_bytes()
    sealed = store._rows("SELECT value FROM counts")[0][0]
    salt = store._rows("SELECT value FROM meta WHERE name = 'salt'")[0][0]
    assert sealed[:64] in before
    run = Store._run

    def failing(self: Store, statement: str, *values: object) -> sqlite3.Cursor:
        if failure is not None and statement.startswith(failure):
            raise StateError("state.sqlite: database or disk is full")
        return run(self, statement, *values)

    with monkeypatch.context() as patch, pytest.raises(StateError, match="full") if failure else nullcontext():
        patch.setattr(Store, "_run", failing)
        store.erase()
    store.put("settings", "a", b"works")
    if failure is not None:
        store = reopened(store)
    for path in store.folder.iterdir():
        assert sealed[1000:1064] not in path.read_bytes() and salt not in path.read_bytes()
        assert path.suffix != ".sealed"
    assert (store.names("weights"), store.names("counts")) == ([], [])
    assert store._rows("SELECT name FROM meta ORDER BY name") == [("check",), ("salt",)]
    assert store.get("settings", "a") == b"works"
    store.close()


def test_cipher_binds_place_and_salt() -> None:
    sealed = Cipher(KEY, b"salt").seal(b"value", "counts/a")
    assert Cipher(KEY, b"salt").open(sealed, "counts/a") == b"value"
    for salt, place, content in (
        (b"other", "counts/a", sealed),
        (b"salt", "counts/b", sealed),
        (b"salt", "counts/a", sealed[:-1]),
        (b"salt", "counts/a", b""),
    ):
        with pytest.raises(StateError, match="cannot be decrypted"):
            Cipher(KEY, salt).open(content, place)


WRITER = """
import sys
from device_sdk.state import Store
store = Store(sys.argv[1], bytes(range(32)))
step = int(store.get("settings", "step") or b"0")
print("ready", flush=True)
while True:
    step += 1
    with store.transaction():
        store.put("weights", "local", str(step).encode() * 20_000)
        store.put("counts", "cache", str(step).encode())
        store.put("settings", "step", str(step).encode())"""


def test_sigkill_leaves_the_last_committed_step(tmp_path: Path) -> None:
    generator, last = random.Random(5), 0
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(generator.uniform(0.01, 0.15))
            process.send_signal(signal.SIGKILL)
        with closing(Store(tmp_path, KEY)) as store:
            step = store.get("settings", "step") or b"0"
            assert int(step) >= last, "counters never go back"
            last = int(step)
            assert not last or (store.get("counts", "cache"), store.get("weights", "local")) == (step, step * 20_000)
    assert last > 0
