"""A real server in a process of its own, and the operator who opens and closes its rounds over HTTP."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from device_sdk.errors import StateError
from server.operators.client import OperatorClient

__all__ = ["Address", "Operator", "ServerProcess"]

START_SECONDS = 180.0
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a running server's dashboard is, and what opens it."""

    url: str
    operator_token: str


class ServerProcess:
    """Owns an `idiolect serve` process on a free port of this machine; its state lies in ``folder``.

    bundle: what the server starts from; None is the packaged one. StateError: it did not come up; the message ends
    with what it printed last.
    """

    def __init__(self, folder: Path, bundle: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_urlsafe(16)
        self._operator_token = secrets.token_urlsafe(16)
        self._log = folder / "server.log"
        self._folder, self._bundle = folder, bundle
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Starts the process, or starts it again over the same state after :meth:`stop`."""
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "device_sdk.cli", "serve", "--port", "0", "--ready-file", str(ready)]
        command += ["--database", str(self._folder / "server.db"), "--blobs", str(self._folder / "server.blobs")]
        command += ["--marginals-cap", "inf"]
        if self._bundle is not None:
            command += ["--bundle", self._bundle]
        environment = {
            **os.environ,
            "IDIOLECT_ENROLMENT_TOKEN": self.token,
            "IDIOLECT_OPERATOR_TOKEN": self._operator_token,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise StateError(f"server in {self._folder}: did not come up; it said: {self._last_words()}")
            time.sleep(0.05)
        self.url = str(json.loads(ready.read_text("utf-8"))["url"])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the process by a signal; SIGKILL leaves it no time to tidy up."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def keep_tokens(self) -> Address:
        """Writes both tokens beside the database, where ``idiolect serve`` looks for them; returns the address."""
        path = self._folder / "server.tokens.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"enrolment_token": self.token, "operator_token": self._operator_token}) + "\n")
        return Address(f"{self.url}/dashboard", self._operator_token)

    def operator(self) -> Operator:
        return Operator(self.url, self._operator_token)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-600:].strip() or "(nothing)"


class Operator:
    """What a simulation asks of its server. Owns the connections to it."""

    def __init__(self, url: str, token: str) -> None:
        self._client = OperatorClient(url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def open_round(self, settings: dict[str, Any]) -> str:
        """The id of a new round, open at once. settings: as JSON of :class:`server.plans.round.RoundSettings`."""
        return str(self._client.post("rounds", json={"settings": settings, "open": True})["id"])

    def close_round(self, round_id: str) -> dict[str, Any]:
        """Closes a round and waits until it is published or abandoned; what became of it."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            found = self._client.post(f"rounds/{round_id}/close")
            if found["state"] in {"published", "abandoned"} or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def status(self) -> dict[str, Any]:
        return self._client.get("status")

    def privacy(self) -> dict[str, dict[str, Any]]:
        """Per stream, what the ledger says of the device that spent most."""
        streams: dict[str, dict[str, Any]] = self._client.get("privacy")["streams"]
        return streams

    def models(self) -> dict[str, str]:
        """Version -> sha256 of every model."""
        return {entry["version"]: entry["sha256"] for entry in self._client.get("models")["models"]}
