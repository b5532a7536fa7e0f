"""A real server process with rounds of secure aggregation, and devices that talk to it."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from server.storage.database import Database
from server.storage.schema import releases
from tests.server.chaos.server_process import BucketServer
from tests.server.parties import WORDS, Operator, Party, settings, until
from tests.server.rounds.secure_aggregation.members import PLAN, Member, through, vectors


class Site:
    """A server, by what its tests ask of it. database: the server's, read beside it."""

    folder: Path
    http: Any
    url = ""
    database: Database

    @property
    def operator(self) -> Operator:
        return Operator(self.http, self.url)

    def parties(self, count: int) -> list[Party]:
        return [Party(self.http, self.url).enrol() for _ in range(count)]

    def join(self, parties: list[Party], *, seed: int = 0, minimum: int = 2, **changes: Any) -> list[Member]:
        """The parties in a new round, whose group is as large as they are many unless ``changes`` say otherwise."""
        groups = {"size": len(parties), "stage_seconds": 600}
        plan = {"marginals": PLAN | {"minimum_survivors": minimum}, "minimum": minimum, "groups": groups}
        round_id, added = self.operator.open(**plan | changes), vectors(len(parties), seed)
        found = [Member(*each, minimum=minimum) for each in zip(parties, [round_id] * len(parties), added, strict=True)]
        for member in found:
            member.join().raise_for_status()
        return found

    def round(self, round_id: str) -> dict[str, Any]:
        return self.operator.get(f"rounds/{round_id}")

    def rows(self, query: Any) -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(query))

    def released(self, round_id: str) -> NDArray[np.int64]:
        (row,) = self.rows(select(releases).where(releases.c.round_id == round_id, releases.c.stream == "marginals"))
        return np.frombuffer(row.counts, "<i8")


class Fleet(Site):
    """Owns a server process and a client of it."""

    def __init__(self, folder: Path, place: str, values: int = 4) -> None:
        self.folder = folder
        self.process = BucketServer(folder, place, WORDS, values)
        self._start()
        self.http = httpx.Client(timeout=60)
        self.database = Database(settings(folder, database=place).database_url)

    def kill(self, members: list[Member] = []) -> None:  # noqa: B006
        """Kill the server and start it again."""
        self.process.kill()
        self._start()
        for member in members:
            member.party.url = self.url

    def _start(self) -> None:
        self.process.start()
        self.url = self.process.url

    def sums(self, members: list[Member]) -> None:
        """The members' round ends with their exact sum."""
        round_id = members[0].round_id
        self.operator.close(round_id)
        found = until(lambda: (now := self.round(round_id))["state"] in ("published", "abandoned") and now, 30)
        assert found["state"] == "published", (found, (self.folder / "server.log").read_text()[-1500:])
        np.testing.assert_array_equal(self.released(round_id), np.sum([member.vector for member in members], axis=0))

    def goes(self, parties: list[Party]) -> None:
        """A round of theirs ends with its sum."""
        members = self.join(parties, seed=1)
        through(members, "unmasking")
        self.sums(members)

    def close(self) -> None:
        self.http.close()
        self.database.close()
        self.process.end()
