"""The same guarantees on PostgreSQL: schema, append-only tables, one writer at a time, one snapshot a reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from device_sdk.errors import StateError
from server.storage.database import Database
from server.storage.schema import devices, metadata, publications
from tests.server.postgres import postgres_server

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as found:
        yield found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    found = Database(url)
    yield found
    with found.write() as connection:
        command.downgrade(found.alembic_config(connection), "base")
    found.close()


def test_migrations_make_the_metadata_up_and_down(database: Database) -> None:
    with database.write() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        command.downgrade(database.alembic_config(connection), "base")
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
        command.upgrade(database.alembic_config(connection), "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


@pytest.mark.parametrize("change", ["UPDATE publications SET note = 'other'", "DELETE FROM publications"])
def test_what_is_append_only_stays_so(database: Database, change: str) -> None:
    with database.write() as connection:
        connection.execute(insert(publications).values(kind="model", version="m", at=0.0, note=""))
    with pytest.raises(IntegrityError, match="append-only"), database.write() as connection:
        connection.exec_driver_sql(change)


def test_writers_of_several_processes_take_turns(url: str, database: Database) -> None:
    """Each adds a device only where it finds fewer than three: without turns some would find the same number."""
    others = [Database(url) for _ in range(3)]

    def write(own: Database, name: int) -> None:
        for number in range(4):
            with own.write() as connection:
                if connection.execute(select(func.count()).select_from(devices)).scalar_one() < 3:
                    key = bytes([name, number] * 16)
                    connection.execute(insert(devices).values(id=f"{name}-{number}", public_key=key, enrolled_at=0.0))

    threads = [threading.Thread(target=write, args=(own, name)) for name, own in enumerate([database, *others])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(devices)).scalar_one() == 3
    for other in others:
        other.close()


def test_a_reader_sees_one_moment(database: Database) -> None:
    count = select(func.count()).select_from(devices)
    with database.read() as connection:
        before = connection.execute(count).scalar_one()
        with database.write() as writer:
            writer.execute(insert(devices).values(id="new", public_key=bytes(32), enrolled_at=0.0))
        assert connection.execute(count).scalar_one() == before
    with database.read() as connection:
        assert connection.execute(count).scalar_one() == before + 1


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StateError, match="cannot be opened"):
        Database("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")
