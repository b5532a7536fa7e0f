"""Migrations, transactions and blobs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, inspect
from sqlalchemy.exc import IntegrityError

from device_sdk.errors import StateError
from server.privacy.ledger import spent, summary
from server.storage.blobs import TEMPORARY, FolderBlobs, FolderLock
from server.storage.database import Database
from server.storage.schema import devices, metadata


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'new' / 'server.db'}")


def test_migrating_an_empty_database_gives_the_metadata(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        names = set(inspect(connection).get_table_names())
    assert names == set(metadata.tables) | {"alembic_version"}
    database.migrate()


def test_a_database_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """With a row in every table that others point to, and triggers that keep tables append-only."""
    from alembic import command

    url = f"sqlite:///{tmp_path / 'old.db'}"
    old = Database(url)
    with old.write() as connection:
        command.downgrade(old.alembic_config(connection), "0001")
        columns = {column["name"] for column in inspect(connection).get_columns("models")}
        assert "teacher" not in columns
        connection.exec_driver_sql(
            "INSERT INTO models (version, sha256, size, created_at, figures, note) VALUES ('m1', 'ab', 1, 0, '{}', '')"
        )
        connection.exec_driver_sql(
            "INSERT INTO rounds (id, number, state, settings, base_model, created_at, marginals_reports, "
            "deltas_reports, note) VALUES ('r1', 1, 'open', '{}', 'm1', 0, 0, 0, '')"
        )
        connection.exec_driver_sql("INSERT INTO publications (kind, version, at, note) VALUES ('model', 'm1', 0, '')")
    old.close()
    database = Database(url)
    with database.write() as connection:
        assert connection.exec_driver_sql("SELECT teacher FROM models").scalar() is None
        assert connection.exec_driver_sql("SELECT base_model FROM rounds").scalar() == "m1"
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        with pytest.raises(IntegrityError, match="append-only"):
            connection.exec_driver_sql("DELETE FROM publications")
    with pytest.raises(IntegrityError), database.write() as connection:
        connection.exec_driver_sql("UPDATE models SET teacher = 'nobody'")
    database.close()


def test_lines_of_an_older_ledger_keep_what_they_cost(tmp_path: Path) -> None:
    from alembic import command

    url = f"sqlite:///{tmp_path / 'old.db'}"
    old = Database(url)
    with old.write() as connection:
        command.downgrade(old.alembic_config(connection), "0002")
        assert "coordinates" not in {column["name"] for column in inspect(connection).get_columns("ledger")}
        connection.exec_driver_sql("INSERT INTO devices (id, public_key, enrolled_at) VALUES ('d1', 'key', 0)")
        connection.exec_driver_sql(
            "INSERT INTO rounds (id, number, state, settings, created_at, marginals_reports, deltas_reports, note) "
            "VALUES ('r1', 1, 'published', '{}', 0, 1, 0, '')"
        )
        connection.exec_driver_sql(
            "INSERT INTO reports (id, device_id, round_id, stream, body_sha256, size, utterances, accepted_at) "
            "VALUES ('p1', 'd1', 'r1', 'marginals', '', 0, 1, 0)"
        )
        connection.exec_driver_sql(
            "INSERT INTO ledger (device_id, stream, round_id, report_id, mechanism, trust, sensitivity, scale, "
            "epsilon, squared_ratio, unbounded, charged_at) "
            "VALUES ('d1', 'marginals', 'r1', 'p1', 'discrete_laplace', 'central', 5120, 5120, 1, 0, 0, 0)"
        )
    old.close()
    database = Database(url)
    with database.write() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        (charge,) = spent(connection, "d1", "marginals").charges
        assert (charge.coordinates, charge.delta, charge.epsilon) == (1, 0.0, 1.0)
        assert summary(connection, 1e-6)["marginals"]["epsilon"] == pytest.approx(1.0, rel=1e-4)
        with pytest.raises(IntegrityError, match="append-only"):
            connection.exec_driver_sql("DELETE FROM ledger")
    database.close()


def test_reports_and_their_charges_outlive_a_new_stream(tmp_path: Path) -> None:
    from alembic import command

    url = f"sqlite:///{tmp_path / 'old.db'}"
    old = Database(url)
    report = "INSERT INTO reports (id, device_id, round_id, stream, body_sha256, size, utterances, accepted_at) "
    with old.write() as connection:
        command.downgrade(old.alembic_config(connection), "0009")
        assert "words_reports" not in {column["name"] for column in inspect(connection).get_columns("rounds")}
        connection.exec_driver_sql("INSERT INTO devices (id, public_key, enrolled_at) VALUES ('d1', 'key', 0)")
        connection.exec_driver_sql(
            "INSERT INTO rounds (id, number, state, settings, created_at, marginals_reports, deltas_reports, note) "
            "VALUES ('r1', 1, 'open', '{}', 0, 1, 0, '')"
        )
        connection.exec_driver_sql(f"{report} VALUES ('p1', 'd1', 'r1', 'marginals', '', 0, 1, 0)")
        connection.exec_driver_sql(
            "INSERT INTO ledger (device_id, stream, round_id, report_id, mechanism, trust, sensitivity, scale, "
            "epsilon, squared_ratio, unbounded, charged_at) "
            "VALUES ('d1', 'marginals', 'r1', 'p1', 'discrete_laplace', 'central', 5120, 5120, 1, 0, 0, 0)"
        )
    with pytest.raises(IntegrityError), old.write() as connection:
        connection.exec_driver_sql(f"{report} VALUES ('p2', 'd1', 'r1', 'words', '', 0, 1, 0)")
    old.close()
    database = Database(url)
    with database.write() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert [row.report_id for row in connection.exec_driver_sql("SELECT report_id FROM ledger")] == ["p1"]
        connection.exec_driver_sql(f"{report} VALUES ('p2', 'd1', 'r1', 'words', '', 0, 1, 0)")
    refused = (
        (f"{report} VALUES ('p3', 'd1', 'r1', 'audio', '', 0, 1, 0)", "ck_reports_stream"),
        (f"{report} VALUES ('p3', 'd1', 'r1', 'words', '', 0, 1, 0)", "UNIQUE"),
        ("DELETE FROM ledger", "append-only"),
        ("DELETE FROM reports WHERE id = 'p1'", "FOREIGN KEY"),
    )
    for statement, why in refused:
        with pytest.raises(IntegrityError, match=why), database.write() as connection:
            connection.exec_driver_sql(statement)
    database.close()


def test_downgrade_leaves_nothing(database: Database) -> None:
    from alembic import command

    with database.write() as connection:
        command.downgrade(database.alembic_config(connection), "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}


def test_a_transaction_is_whole_or_not_at_all(database: Database) -> None:
    insert = "INSERT INTO publications (kind, version, at, note) VALUES ('model', '1', 0, '')"
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.exec_driver_sql(insert)
        raise ZeroDivisionError
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM publications").scalar() == 0


def test_foreign_keys_hold(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as connection:
        connection.exec_driver_sql("INSERT INTO nonces VALUES ('nobody', 'nonce', 0)")


def test_an_unreadable_url_is_named() -> None:
    with pytest.raises(StateError, match="cannot read its URL"):
        Database("no url")


def test_errors_do_not_tell_what_was_sent(database: Database) -> None:
    with pytest.raises(IntegrityError) as raised, database.write() as connection:
        connection.execute(insert(devices).values(id="rollout", public_key=b"rollout", enrolled_at=None))
    assert "rollout" not in str(raised.value)


def test_many_writers(database: Database) -> None:
    def work() -> None:
        for _ in range(10):
            with database.write() as connection:
                count = connection.exec_driver_sql("SELECT count(*) FROM publications").scalar()
                connection.exec_driver_sql(
                    f"INSERT INTO publications (kind, version, at, note) VALUES ('model', '{count}', 0, '')"
                )

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        versions = connection.exec_driver_sql("SELECT DISTINCT version FROM publications").fetchall()
    assert len(versions) == 60  # every writer saw what the one before had written


@pytest.mark.parametrize("content", [b"not a database" * 100, None])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "server.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StateError, match=r"server\.db: cannot be opened"):
        Database(f"sqlite:///{path}")


def test_blobs(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")
    store.put("models/ab.safetensors", b"first")
    store.put("models/ab.safetensors", b"second")
    store.put("deltas/r1/x", b"")
    assert store.get("models/ab.safetensors") == b"second"
    assert list(store.names("deltas")) == ["deltas/r1/x"]
    store.delete("deltas/r1/x")
    store.delete("deltas/r1/x")
    assert list(store.names("deltas")) == []
    with pytest.raises(StateError, match="restore it from a backup"):
        store.get("deltas/r1/x")


@pytest.mark.parametrize("name", ["", "models", "/etc/passwd", "models/../x", "models/.hidden", "a//b", "models/a b"])
def test_blob_names_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(StateError, match="blob name"):
        FolderBlobs(tmp_path).put(name, b"")


def test_a_cut_off_write_leaves_nothing_behind(tmp_path: Path) -> None:
    leftover = tmp_path / "models" / f"{TEMPORARY}abc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    assert list(FolderBlobs(tmp_path).names("models")) == []
    assert not leftover.exists()


def test_a_failed_write_names_the_file(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path)
    (tmp_path / "models" / "x").mkdir(parents=True)
    with pytest.raises(StateError, match=r"models/x: cannot be written"):
        store.put("models/x", b"content")
    assert list((tmp_path / "models").iterdir()) == [tmp_path / "models" / "x"]


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(StateError, match="another server process"):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()
