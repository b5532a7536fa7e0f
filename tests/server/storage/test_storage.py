"""Migrations, transactions and blobs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from device_sdk.errors import StateError
from server.settings import database_url
from server.storage.blobs import TEMPORARY, FolderBlobs, lock_folder
from server.storage.database import Database
from server.storage.schema import devices, metadata


@pytest.fixture
def database(place: str) -> Iterator[Database]:
    with closing(Database(database_url(place))) as database:
        yield database


def test_the_migration_makes_the_metadata_and_unmakes_it(database: Database) -> None:
    database.migrate()
    with database.write() as connection:
        config = database.alembic_config(connection)
        for _ in range(2):
            assert set(inspect(connection).get_table_names()) == set(metadata.tables) | {"alembic_version"}
            assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []
            command.downgrade(config, "base")
            assert inspect(connection).get_table_names() == ["alembic_version"]
            command.upgrade(config, "head")


def test_a_database_of_a_newer_server_is_refused(database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    url = database.engine.url.render_as_string(hide_password=False)
    for existing in (False, True):
        with pytest.raises(StateError, match="revision 9999, which a newer server made"):
            Database(url, existing=existing)


ROUND = (
    "INSERT INTO rounds (id, number, state, settings, created_at, marginals_reports, deltas_reports, words_reports, "
    "forgotten, note) VALUES ('{0}', {1}, 'published', '{{}}', 0, 0, 0, 0, {1}, '')"
)
REPORT = (
    "INSERT INTO reports (id, device_id, round_id, stream, body_sha256, size, utterances, accepted_at) "
    "VALUES ('{0}', 'd', '{0}', '{1}', '', 0, 1, 0)"
)
CHARGE = "'marginals', 'discrete_laplace', 'central', 1, 1, 1, 0, 1, 0, false"
LEDGER = (
    "INSERT INTO ledger (round_id, report_id, draw, charged_at, device_id, stream, mechanism, trust, sensitivity, "
    f"scale, coordinates, delta, epsilon, squared_ratio, unbounded) VALUES ('{{0}}', '{{0}}', 1, 0, 'd', {CHARGE})"
)
LIVED = [
    "INSERT INTO devices (id, public_key, enrolled_at) VALUES ('d', 'key', 0)",
    *(template.format(*values) for values in (("kept", 0), ("gone", 1)) for template in (ROUND,)),
    *(REPORT.format(name, "marginals") for name in ("kept", "gone")),
    *(LEDGER.format(name) for name in ("kept", "gone")),
    f"INSERT INTO ledger_totals VALUES ('d', {CHARGE}, 2, 1)",
    "INSERT INTO publications (kind, version, at, note) VALUES ('model', 'm', 0, '')",
    "INSERT INTO actions (at, operator, action, subject, note) VALUES (0, 'anna', 'round.open', 'kept', '')",
    "INSERT INTO release_keys (round_id, stream, inputs_sha256, key, key_sha256, made_at) "
    "VALUES ('kept', 'deltas', 'a', 'b', 'c', 0)",
    "INSERT INTO transitions (round_id, source, target, at, note) VALUES ('kept', 'planned', 'open', 0, '')",
    "INSERT INTO releases (round_id, stream, inputs_sha256, reports, mechanism, variance, drawn_at) "
    "VALUES ('kept', 'deltas', 'a', 1, '{}', 0, 0)",
]
"""Two rounds, of which one is forgotten, with a device's report and charge in each."""


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("UPDATE publications SET note = 'other'", "append-only"),
        ("DELETE FROM publications", "append-only"),
        ("UPDATE actions SET operator = 'other'", "append-only"),
        ("DELETE FROM actions", "append-only"),
        ("UPDATE ledger SET epsilon = 0", "append-only"),
        ("DELETE FROM ledger WHERE round_id = 'kept'", "append-only"),
        ("DELETE FROM ledger WHERE round_id = 'gone'", None),
        ("UPDATE release_keys SET key_sha256 = 'd'", "append-only"),
        ("DELETE FROM release_keys", "append-only"),
        ("DELETE FROM transitions", "append-only"),
        ("DELETE FROM releases", "append-only"),
        ("UPDATE release_keys SET key = NULL", None),
        ("UPDATE ledger_totals SET times = 1", "only grow"),
        ("UPDATE ledger_totals SET settled = 0", "only grow"),
        ("UPDATE ledger_totals SET epsilon = 0", "only grow"),
        ("DELETE FROM ledger_totals", "only grow"),
        ("UPDATE ledger_totals SET times = 3, settled = 2", None),
        (REPORT.format("kept", "audio"), "ck_reports_stream"),
        (REPORT.format("kept", "marginals"), "(?i)unique"),
        ("DELETE FROM reports WHERE id = 'kept'", "(?i)foreign key"),
        ("INSERT INTO nonces VALUES ('nobody', 'nonce', 0)", "(?i)foreign key"),
    ],
)
def test_the_database_itself_keeps_what_it_must(database: Database, change: str, refusal: str | None) -> None:
    with database.write() as connection:
        for statement in LIVED:
            connection.exec_driver_sql(statement)
    refused = nullcontext() if refusal is None else pytest.raises(IntegrityError, match=refusal)
    with refused, database.write() as connection:
        connection.exec_driver_sql(change)


def test_a_transaction_is_whole_or_not_at_all(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.exec_driver_sql("INSERT INTO publications (kind, version, at, note) VALUES ('model', '1', 0, '')")
        raise ZeroDivisionError
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM publications").scalar() == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no url", "cannot read its URL"),
        ("sqlite:///{}/blobs", "blobs: cannot be opened"),  # a folder
        ("sqlite:///{}/notes.db", r"notes\.db: cannot be opened"),
        pytest.param("postgresql://no@127.0.0.1:1/none?connect_timeout=2", "cannot be", marks=pytest.mark.postgres),
    ],
)
def test_what_is_no_database_is_named(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "notes.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match=message):
        Database(url.format(tmp_path))


def test_errors_do_not_tell_what_was_sent(database: Database) -> None:
    with pytest.raises(IntegrityError) as raised, database.write() as connection:
        connection.execute(insert(devices).values(id="rollout", public_key=b"rollout", enrolled_at=None))
    assert "rollout" not in str(raised.value)


def test_writers_take_turns(place: str) -> None:
    """Threads of two processes: every writer sees what the one before has written."""
    databases = [Database(database_url(place)) for _ in range(2)]

    def work(database: Database) -> None:
        for _ in range(10):
            with database.write() as connection:
                count = connection.exec_driver_sql("SELECT count(*) FROM publications").scalar()
                connection.exec_driver_sql(
                    f"INSERT INTO publications (kind, version, at, note) VALUES ('model', '{count}', 0, '')"
                )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, 3 * databases))
    with databases[0].read() as connection:
        versions = connection.exec_driver_sql("SELECT DISTINCT version FROM publications").fetchall()
    assert len(versions) == 60
    for database in databases:
        database.close()


def test_a_reader_sees_one_moment(database: Database) -> None:
    count = select(func.count()).select_from(devices)
    with database.read() as connection:
        before = connection.execute(count).scalar_one()
        with database.write() as writer:
            writer.execute(insert(devices).values(id="new", public_key=bytes(32), enrolled_at=0.0))
        assert connection.execute(count).scalar_one() == before
    with database.read() as connection:
        assert connection.execute(count).scalar_one() == before + 1


def test_a_cut_off_write_leaves_nothing_behind(tmp_path: Path) -> None:
    leftover = tmp_path / "models" / f"{TEMPORARY}abc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    assert list(FolderBlobs(tmp_path).names("models")) == [] and not leftover.exists()


def test_a_failed_write_names_the_file(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path)
    (tmp_path / "models" / "x").mkdir(parents=True)
    with pytest.raises(StateError, match=r"models/x: cannot be written"):
        store.put("models/x", b"content")
    assert list((tmp_path / "models").iterdir()) == [tmp_path / "models" / "x"]


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    with pytest.raises(StateError, match="another server process"):
        lock_folder(tmp_path)
    lock.close()
    lock_folder(tmp_path).close()
