"""A real server in a process of its own, which is started, killed and started again over the same state."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from device_sdk.errors import StateError
from server.operators.client import OperatorClient

START_SECONDS, STOP_SECONDS = 180.0, 60.0


class ServerProcess:
    """Owns an `idiolect serve` process on this machine, and its operator's connections; its state lies in ``folder``.
    bundle: what the server starts from; None is the packaged one. options: of the command, beside the defaults of a
    simulation, a free port among them. where: its database, if that is not a file in ``folder``. StateError: it did not
    come up; the message ends with what it printed last."""

    operator: OperatorClient

    def __init__(self, folder: Path, bundle: str | None = None, *options: str, where: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.database = folder, folder / "server.db"
        self.token, self.operator_token = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._ready = folder / "ready.json"
        self._command = [sys.executable, "-m", "device_sdk.cli", "serve", "--port", "0", "--marginals-cap", "inf"]
        self._command += ["--ready-file", str(self._ready), "--database", where or str(self.database)]
        self._command += ["--blobs", str(folder / "server.blobs")]
        self._command += [*(() if bundle is None else ("--bundle", bundle)), *options]

    @property
    def environment(self) -> dict[str, str]:
        """Of the process: the one around it, with the tokens."""
        return os.environ | {"IDIOLECT_ENROLMENT_TOKEN": self.token, "IDIOLECT_OPERATOR_TOKEN": self.operator_token}

    def start(self) -> None:
        """Starts the process, or starts it again over the same state after :meth:`stop`."""
        self._ready.unlink(missing_ok=True)
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                self.process = None
                said = log.read_text("utf-8", "replace")[-600:].strip() or "(nothing)"
                raise StateError(f"server in {self.folder}: did not come up; it said: {said}")
            time.sleep(0.05)
        self.url = str(json.loads(self._ready.read_text("utf-8"))["url"])
        self.operator = OperatorClient(self.url, self.operator_token)

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """Ends the process by a signal, of which SIGKILL leaves it no time to tidy up; returns its exit status, None
        where there is none."""
        if self.process is None:
            return None
        self.operator.close()
        self.process.send_signal(number)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.process = None
        return status

    def keep_tokens(self) -> None:
        """Writes both tokens beside the database, where ``idiolect serve`` looks for them."""
        path = self.folder / "server.tokens.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"enrolment_token": self.token, "operator_token": self.operator_token}) + "\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()
