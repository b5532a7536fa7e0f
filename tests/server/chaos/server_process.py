"""A real server process that is killed and started again, as a supervisor would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from server.registry.initial import InitialModel
from tests.server.parties import DIGEST

__all__ = ["ServerProcess", "buckets"]

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
from pathlib import Path
import server.app
from server.commands.serve import run
from server.settings import Rate, Rates
from tests.server.chaos.server_process import buckets
from tests.server.parties import settings
folder, database, words, values = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
at_once = Rates(address=Rate(1e6, 1e6), device=Rate(1e6, 1e6))
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        own = settings(folder, database=database, rates=at_once)
        run(own, buckets(words, values), host="127.0.0.1", port=0, ready_file=folder / "ready.json")
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks a server for every line that it reads, says which process it is, and how that ended: what is imported, which
is most of a start, is imported once. A server opens its state afresh, as every process does."""


def buckets(words: int, values: int) -> InitialModel:
    """One word for every report of counts, one value for every delta."""
    weights = {"w": np.zeros(values, np.float32)}
    return InitialModel(weights, "base-1", DIGEST, np.full(words, 1 / words))


class ServerProcess:
    """Owns the process; ``url`` changes whenever it starts again. What it prints is in ``folder/server.log``."""

    def __init__(self, folder: Path, database: str, words: int, values: int) -> None:
        self.folder = folder
        self.url = ""
        self._ready = folder / "ready.json"
        self._running: int | None = None
        with (folder / "server.log").open("ab") as log:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder), database, str(words), str(values)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def spawn(self) -> None:
        """Start, and do not wait."""
        self._ready.unlink(missing_ok=True)
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write("\n")
        self._parent.stdin.flush()
        self._running = int(self._parent.stdout.readline())

    def start(self, attempts: int = 5) -> None:
        """Start and wait until it serves. A database server may take a moment to see that the one before is gone."""
        for attempt in range(1, attempts + 1):
            self.spawn()
            assert self._running is not None
            deadline = time.monotonic() + 120
            while not self._ready.exists() and _lives(self._running):
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            if self._ready.exists():
                self.url = json.loads(self._ready.read_text())["url"]
                return
            self._ended()
            assert attempt < attempts, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.2)

    def kill(self) -> None:
        assert self._running is not None
        os.kill(self._running, signal.SIGKILL)
        assert self._ended() == -signal.SIGKILL

    def stop(self) -> int:
        assert self._running is not None
        os.kill(self._running, signal.SIGTERM)
        return self._ended()

    def end(self) -> None:
        """Whatever state it is in."""
        if self._running is not None and _lives(self._running):
            os.kill(self._running, signal.SIGKILL)
        self._parent.kill()
        self._parent.communicate()

    def _ended(self) -> int:
        assert self._parent.stdout is not None
        self._running = None
        return int(self._parent.stdout.readline())


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
