"""A real server process that is killed and started again, as a supervisor would."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np

from server.registry.initial import InitialModel
from tests.forks import Forked, await_ready
from tests.server.parties import DIGEST, settings


def buckets(words: int, values: int) -> InitialModel:
    """One word for every report of counts, one value for every delta."""
    return InitialModel({"w": np.zeros(values, np.float32)}, "base-1", DIGEST, np.full(words, 1 / words))


def serve(folder: str, database: str, words: str, values: str) -> None:
    """What the process runs."""
    from server.serve import run
    from server.settings import Rate, Rates

    at_once = Rates(address=Rate(1e6, 1e6), device=Rate(1e6, 1e6))
    own = settings(Path(folder), database=database, rates=at_once)
    run(own, buckets(int(words), int(values)), host="127.0.0.1", port=0, ready_file=Path(folder) / "ready.json")


class ServerProcess:
    """Owns the process; ``url`` changes whenever it starts again. What it prints is in ``folder/server.log``."""

    def __init__(self, folder: Path, database: str, words: int, values: int) -> None:
        self.folder, self.url = folder, ""
        self._words = (str(folder), database, str(words), str(values))
        self._running: Forked | None = None

    def spawn(self) -> Forked:
        """Start, and do not wait."""
        (self.folder / "ready.json").unlink(missing_ok=True)
        self._running = Forked(f"{__name__}:serve", *self._words, out=self.folder / "server.log")
        return self._running

    def start(self, attempts: int = 5) -> None:
        """Start and wait until it serves. A database server may take a moment to see that the one before is gone."""
        for attempt in range(1, attempts + 1):
            try:
                self.url = await_ready(self.spawn(), self.folder)["url"]
                return
            except AssertionError:
                if attempt == attempts:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._running is not None
        self._running.send(number)
        return self._running.wait()

    def end(self) -> None:
        """Whatever state it is in."""
        if self._running is not None:
            self._running.kill()
