from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_sdk.errors import StateError
from device_sdk.state import SCHEMA_VERSION, TABLES, Cipher, Store
from device_sdk.state.store import FILED_BYTES

KEY = bytes(range(32))


def test_values_come_back_after_closing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state", KEY)
    for table in TABLES:
        store.put(table, "b", table.encode())
        store.put(table, "a", b"first")
        store.put(table, "a", b"")
    store.delete("counts", "b")
    store.close()
    store.close()
    store = Store(tmp_path / "state", KEY)
    assert store.names("counts") == ["a"]
    assert store.names("outbox") == ["b", "a"]
    assert store.get("counts", "a") == b""
    assert store.get("counts", "b") is None
    assert store.get("weights", "b") == b"weights"
    store.close()


@pytest.mark.parametrize(
    ("key", "words"),
    [(bytes(32), "cannot be decrypted"), (b"short", "found 5 bytes"), ("a text of many words", "found str")],
)
def test_another_key_is_refused(tmp_path: Path, key: bytes, words: str) -> None:
    Store(tmp_path, KEY).close()
    with pytest.raises(StateError, match=words):
        Store(tmp_path, key)
    Store(tmp_path, KEY).close()  # the failed try left no lock behind


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    with pytest.raises(StateError, match="in use"):
        Store(tmp_path, KEY)
    code = "import sys; from device_sdk.state import Store; Store(sys.argv[1], bytes(range(32)))"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "in use" in other.stderr
    store.close()
    Store(tmp_path, KEY).close()


def test_damage_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "state.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(StateError, match=r"state\.sqlite"):
        Store(tmp_path / "a", KEY)
    Store(tmp_path / "b", KEY).close()
    with sqlite3.connect(tmp_path / "b" / "state.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StateError, match="schema version: found 2, expected 1; use the idiolect that wrote it"):
        Store(tmp_path / "b", KEY)
    Store(tmp_path / "c", KEY).close()
    with sqlite3.connect(tmp_path / "c" / "state.sqlite") as connection:
        connection.execute("DELETE FROM meta WHERE name = 'salt'")
    connection.close()
    with pytest.raises(StateError, match="table meta"):
        Store(tmp_path / "c", KEY)
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(StateError, match="cannot be used"):
        Store(tmp_path / "d", KEY)


def test_values_cannot_be_swapped(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("counts", "a", b"one")
    store.put("settings", "a", b"two")
    store.close()
    with sqlite3.connect(tmp_path / "state.sqlite") as connection:
        connection.execute("UPDATE settings SET value = (SELECT value FROM counts WHERE name = 'a')")
    connection.close()
    store = Store(tmp_path, KEY)
    assert store.get("counts", "a") == b"one"
    with pytest.raises(StateError, match="settings/a"):
        store.get("settings", "a")
    store.close()


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("counts", "a", b"before")
    with pytest.raises(RuntimeError), store.transaction():
        store.put("counts", "a", b"after")
        with store.transaction():
            store.put("weights", "local", b"new")
        raise RuntimeError
    assert store.get("counts", "a") == b"before"
    assert store.get("weights", "local") is None
    with store.transaction():
        store.put("counts", "a", b"after")
        store.put("weights", "local", b"new")
    assert store.get("counts", "a") == b"after"
    with pytest.raises(StateError, match="table: found 'audio'"):
        store.put("audio", "a", b"")
    store.close()
    with pytest.raises(StateError):
        store.get("counts", "a")


def test_a_full_disk_is_named_and_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("counts", "a", b"before")
    pages = store._run("PRAGMA page_count").fetchone()[0]
    store._run(f"PRAGMA max_page_count = {pages + 3}")
    for _ in range(2):
        with pytest.raises(StateError, match="full"), store.transaction():
            store.put("counts", "a", b"after")
            store.put("counts", "b", bytes(500_000))
        assert store.get("counts", "a") == b"before"
    with store.transaction():
        store.put("counts", "a", b"after")
    assert store.get("counts", "a") == b"after"
    store.close()


def test_nothing_readable_lies_on_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    canary = b"xylophone-canary"
    for table in TABLES:
        store.put(table, "value", canary * 100)
    for path in tmp_path.iterdir():
        assert canary not in path.read_bytes()
    store.close()


LARGE = 3 * FILED_BYTES


def sealed_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.sealed")}


def test_large_weights_and_reports_lie_in_files_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("weights", "local", b"1" * LARGE)
    (first,) = sealed_files(tmp_path)
    store.put("weights", "local", b"2" * LARGE)
    store.put("weights", "teacher", b"small")
    store.put("outbox", "r1", b"3" * LARGE)
    store.put("counts", "cache", b"4" * LARGE)
    assert len(sealed_files(tmp_path)) == 2
    assert first not in sealed_files(tmp_path)
    assert (tmp_path / "state.sqlite-wal").stat().st_size < 5 * LARGE
    store.close()
    store = Store(tmp_path, KEY)
    assert store.get("weights", "local") == b"2" * LARGE
    assert store.get("outbox", "r1") == b"3" * LARGE
    store.put("weights", "local", b"small again")
    store.delete("outbox", "r1")
    assert sealed_files(tmp_path) == {}
    assert store.get("weights", "local") == b"small again"
    store.close()


def test_a_file_belongs_to_the_state_only_once_its_row_is_committed(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("weights", "local", b"1" * LARGE)
    before = sealed_files(tmp_path)
    with pytest.raises(RuntimeError), store.transaction():
        store.put("weights", "local", b"2" * LARGE)
        store.delete("weights", "local")
        store.put("weights", "teacher", b"3" * LARGE)
        assert len(sealed_files(tmp_path)) == 3
        raise RuntimeError
    assert sealed_files(tmp_path) == before
    assert store.get("weights", "local") == b"1" * LARGE
    store.close()
    (tmp_path / ("0" * 32 + ".sealed")).write_bytes(b"left by a process that was killed")
    (tmp_path / "notes.txt").write_bytes(b"not ours")
    store = Store(tmp_path, KEY)
    assert sealed_files(tmp_path) == before
    assert (tmp_path / "notes.txt").exists()
    store.close()


def test_files_cannot_be_swapped_lost_or_pointed_elsewhere(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    store.put("weights", "local", b"1" * LARGE)
    (first,) = sealed_files(tmp_path)
    store.put("weights", "teacher", b"2" * LARGE)
    (second,) = sealed_files(tmp_path).keys() - {first}
    one, other = (tmp_path / first).read_bytes(), (tmp_path / second).read_bytes()
    (tmp_path / first).write_bytes(other)
    with pytest.raises(StateError, match=f"weights/local/{first}: .*cannot be decrypted"):
        store.get("weights", "local")
    (tmp_path / first).write_bytes(one[:-1])
    with pytest.raises(StateError, match="cannot be decrypted"):
        store.get("weights", "local")
    (tmp_path / first).unlink()
    with pytest.raises(StateError, match="weights/local: the file of its value cannot be read"):
        store.get("weights", "local")
    store._run("UPDATE weights SET file = '../../other' WHERE name = 'local'")
    with pytest.raises(StateError, match="weights/local: found no name of a file"):
        store.get("weights", "local")
    store.put("weights", "local", b"mended")
    assert store.get("weights", "local") == b"mended"
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_a_file_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    import resource

    store = Store(tmp_path, KEY)
    store.put("weights", "local", b"1" * LARGE)
    before, limits = sealed_files(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * LARGE, limits[1]))
    try:
        with pytest.raises(StateError, match="a value cannot be written"), store.transaction():
            store.put("settings", "a", b"with it")
            store.put("weights", "local", b"2" * 3 * LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert sealed_files(tmp_path) == before
    assert store.get("settings", "a") is None
    assert store.get("weights", "local") == b"1" * LARGE
    store.close()


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, KEY)
    store.put("weights", "local", b"1" * LARGE)
    before, opened = sealed_files(tmp_path), os.open

    def failing(path: object, *arguments: int) -> int:
        if path == tmp_path:
            raise OSError(5, "Input/output error")
        return opened(path, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(StateError, match=r"cannot be written: .*Input/output"):
        patch.setattr(os, "open", failing)
        store.put("weights", "local", b"2" * LARGE)
    assert sealed_files(tmp_path) == before
    assert store.get("weights", "local") == b"1" * LARGE
    store.close()


@pytest.mark.parametrize("failure", ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)", "DELETE FROM meta WHERE", None])
def test_erase_leaves_nothing_and_an_erasure_cut_short_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    store = Store(tmp_path, KEY)
    store.put("weights", "local", os.urandom(LARGE))
    store.put("counts", "cache", os.urandom(LARGE))
    before = (tmp_path / "state.sqlite-wal").read_bytes() + (tmp_path / "state.sqlite").read_bytes()
    sealed = store._run("SELECT value FROM counts").fetchone()[0]
    salt = store._run("SELECT value FROM meta WHERE name = 'salt'").fetchone()[0]
    assert sealed[:64] in before
    run = Store._run

    def failing(self: Store, statement: str, *values: object) -> sqlite3.Cursor:
        if failure is not None and statement.startswith(failure):
            raise StateError("state.sqlite: database or disk is full")
        return run(self, statement, *values)

    if failure is None:
        store.erase()
        store.put("settings", "a", b"works")
    else:
        with monkeypatch.context() as patch, pytest.raises(StateError, match="full"):
            patch.setattr(Store, "_run", failing)
            store.erase()
        store.put("settings", "a", b"works")
        store.close()
        store = Store(tmp_path, KEY)
    assert [path.name for path in sorted(tmp_path.iterdir())][:2] == ["lock", "state.sqlite"]
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert sealed[1000:1064] not in content
        assert salt not in content
        assert path.suffix != ".sealed"
    assert (store.names("weights"), store.names("counts")) == ([], [])
    assert store._rows("SELECT name FROM meta ORDER BY name") == [("check",), ("salt",)]
    assert store.get("settings", "a") == b"works"
    store.close()


def test_cipher_binds_place_and_salt() -> None:
    sealed = Cipher(KEY, b"salt").seal(b"value", "counts/a")
    assert Cipher(KEY, b"salt").open(sealed, "counts/a") == b"value"
    for cipher, place, content in (
        (Cipher(KEY, b"other"), "counts/a", sealed),
        (Cipher(KEY, b"salt"), "counts/b", sealed),
        (Cipher(KEY, b"salt"), "counts/a", sealed[:-1]),
        (Cipher(KEY, b"salt"), "counts/a", b""),
    ):
        with pytest.raises(StateError, match="cannot be decrypted"):
            cipher.open(content, place)


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
        store.put("settings", "step", str(step).encode())
"""


def test_sigkill_leaves_the_last_committed_step(tmp_path: Path) -> None:
    generator = random.Random(5)
    last = 0
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(generator.uniform(0.01, 0.15))
            process.send_signal(signal.SIGKILL)
        store = Store(tmp_path, KEY)
        step = store.get("settings", "step") or b"0"
        assert int(step) >= last, "counters never go back"
        last = int(step)
        if last:
            assert store.get("counts", "cache") == step
            assert store.get("weights", "local") == step * 20_000
        store.close()
    assert last > 0
