"""A real server process that is killed and started again, as a supervisor would."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np

from server.registry.initial import InitialModel
from tests.forks import Forked
from tests.server.parties import DIGEST, settings

__all__ = ["ServerProcess", "buckets", "serve"]


def buckets(words: int, values: int) -> InitialModel:
    """One word for every report of counts, one value for every delta."""
    weights = {"w": np.zeros(values, np.float32)}
    return InitialModel(weights, "base-1", DIGEST, np.full(words, 1 / words))


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
        self.folder = folder
        self.url = ""
        self._words = (str(folder), database, str(words), str(values))
        self._ready = folder / "ready.json"
        self._running: Forked | None = None

    def spawn(self) -> None:
        """Start, and do not wait."""
        self._ready.unlink(missing_ok=True)
        self._running = Forked(f"{__name__}:serve", *self._words, out=self.folder / "server.log")

    def start(self, attempts: int = 5) -> None:
        """Start and wait until it serves. A database server may take a moment to see that the one before is gone."""
        for attempt in range(1, attempts + 1):
            self.spawn()
            assert self._running is not None
            deadline = time.monotonic() + 120
            while not self._ready.exists() and self._running.poll() is None:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            if self._ready.exists():
                self.url = json.loads(self._ready.read_text())["url"]
                return
            assert attempt < attempts, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.2)

    def kill(self) -> None:
        assert self._running is not None
        self._running.send(signal.SIGKILL)
        assert self._running.wait() == -signal.SIGKILL

    def stop(self) -> int:
        assert self._running is not None
        self._running.send(signal.SIGTERM)
        return self._running.wait()

    def end(self) -> None:
        """Whatever state it is in."""
        if self._running is not None:
            self._running.kill()
