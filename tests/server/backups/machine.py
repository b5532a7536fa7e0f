"""A server process over a database and blobs of its own, the program's commands beside it, and the loss of it all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from tests.server.chaos.server_process import BucketServer
from tests.server.parties import Operator, Party

WORDS, VALUES = 40, 64


class Machine:
    """Owns a server process, whose state is ``folder`` and, where one is given, a database elsewhere."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.database, self.blobs = folder, database or str(folder / "server.db"), folder / "blobs"
        self.process = BucketServer(folder, self.database, WORDS, VALUES)
        self.http = httpx.Client(timeout=60)

    @property
    def place(self) -> list[str]:
        """What the program's commands are told of where it lies."""
        return ["--database", self.database, "--blobs", str(self.blobs)]

    @property
    def operator(self) -> Operator:
        return Operator(self.http, self.process.url)

    def party(self) -> Party:
        return Party(self.http, self.process.url).enrol()

    def moved(self, parties: list[Party]) -> None:
        """What devices do when their server is at another address."""
        for party in parties:
            party.http, party.url = self.http, self.process.url

    @contextmanager
    def running(self) -> Iterator[Operator]:
        """Serves until the block ends, which kills it."""
        self.process.start()
        try:
            yield self.operator
        finally:
            self.process.kill()

    def close(self) -> None:
        self.process.end()
        self.http.close()


def delta(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(VALUES, value, np.float32)}
