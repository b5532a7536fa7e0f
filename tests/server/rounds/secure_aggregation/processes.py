"""A real server process with rounds of secure aggregation, on SQLite and on PostgreSQL, and devices that talk to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from server.storage.database import Database
from server.storage.schema import releases
from tests.server.chaos.server_process import ServerProcess
from tests.server.parties import WORDS, Operator, Party, settings
from tests.server.postgres import postgres_server
from tests.server.rounds.secure_aggregation.members import PLAN, Member, vectors

__all__ = ["PLACES", "Fleet", "placed", "serving", "until"]

PLACES = ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])]


class Fleet:
    """Owns a server process and a client of it. database: what the server's is, read from outside."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder = folder
        self.process = ServerProcess(folder, place, WORDS, 4)
        self.process.start()
        self.http = httpx.Client(timeout=60)
        self.database = Database(settings(folder, database=place).database_url)

    @property
    def operator(self) -> Operator:
        return Operator(self.http, self.process.url)

    def parties(self, count: int) -> list[Party]:
        return [Party(self.http, self.process.url).enrol() for _ in range(count)]

    def join(self, parties: list[Party], *, seed: int = 0, **changes: Any) -> list[Member]:
        """The parties in a new round, whose group is as large as they are many unless ``changes`` say otherwise."""
        round_id = self.operator.open(
            **{"marginals": PLAN, "minimum": 2, "groups": {"size": len(parties), "stage_seconds": 600}} | changes
        )
        found = [
            Member(party, round_id, vector) for party, vector in zip(parties, vectors(len(parties), seed), strict=True)
        ]
        for member in found:
            answer = member.join()
            assert answer.status_code == 200, answer.text
        return found

    def kill(self, members: list[Member] = []) -> None:  # noqa: B006
        """Kill the server and start it again."""
        self.process.kill()
        self.process.start()
        for member in members:
            member.party.url = self.process.url

    def round(self, round_id: str) -> dict[str, Any]:
        return self.operator.get(f"rounds/{round_id}")

    def rows(self, query: Any) -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(query))

    def released(self, round_id: str) -> NDArray[np.int64]:
        (row,) = self.rows(select(releases).where(releases.c.round_id == round_id, releases.c.stream == "marginals"))
        return np.frombuffer(row.counts, "<i8")

    def close(self) -> None:
        self.http.close()
        self.database.close()
        self.process.end()


@contextmanager
def placed(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield str(folder / "server.db")
        return
    with postgres_server() as url:
        yield url


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[Fleet]:
    with placed(kind, folder) as place:
        fleet = Fleet(folder, place)
        try:
            yield fleet
        finally:
            fleet.close()


def until(found: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What ``found`` gives, once that is something; what it gave last, where time runs out."""
    deadline = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
