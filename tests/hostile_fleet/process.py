"""``idiolect serve`` as an operator runs it, on one address for its whole life: started, killed, saved and restored."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

__all__ = ["ENROLMENT", "OPERATOR", "ServerProcess"]

ROOT = Path(__file__).parents[2]
ENROLMENT, OPERATOR = "a-token-that-enrols", "a-token-that-operates"
IDIOLECT = (sys.executable, "-m", "device_sdk.cli")


class ServerProcess:
    """Owns the process and ``folder``, which holds the database, the blobs, the log and what a lost server left."""

    def __init__(self, folder: Path, bundle: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = folder / "server.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self.peak_bytes = 0
        self._arguments = ["serve", "--bundle", str(bundle), "--port", str(self.port), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until requests are answered."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*IDIOLECT, *self._arguments, "--database", str(self.database)],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self.starts += 1
        deadline = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, self.log[-3000:]
            assert time.monotonic() < deadline, "the server did not start"
            try:
                if httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)

    def kill(self) -> None:
        """As a power cut would."""
        assert self._process is not None
        self.look()
        self._process.kill()
        self._process.wait(60)
        self._process = None

    def stop(self) -> int:
        """As an operator would. Returns the exit status."""
        assert self._process is not None
        self.look()
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(60)
        self._process = None
        return status

    @property
    def running(self) -> bool:
        return self._process is not None

    def look(self) -> None:
        """Notes the most memory that a process has held so far."""
        if self._process is not None:
            try:
                status = Path(f"/proc/{self._process.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                self.peak_bytes = max(self.peak_bytes, 1024 * int(found[1]))

    def command(self, *arguments: str) -> str:
        """What a command of ``idiolect`` prints. AssertionError where it fails."""
        done = subprocess.run(
            [*IDIOLECT, *arguments], cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"idiolect {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def save(self, archive: Path) -> None:
        self.command("backup", str(archive), "--database", str(self.database), "--json")
        self.command("backup", "--verify", str(archive))

    def lose(self) -> Path:
        """The server's machine is gone, with all that it held. Returns where that lies, for whoever judges."""
        if self.running:
            self.kill()
        lost = self.folder / "lost"
        lost.mkdir()
        for path in self.folder.glob("server.*"):
            if path.suffix != ".log" and not path.name.endswith(".tokens.json"):
                shutil.move(path, lost / path.name)
        return lost

    def restore(self, archive: Path) -> None:
        self.command("restore", str(archive), "--database", str(self.database), "--json")

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    @property
    def _environment(self) -> dict[str, str]:
        secrets = {"IDIOLECT_ENROLMENT_TOKEN": ENROLMENT, "IDIOLECT_OPERATOR_TOKEN": OPERATOR}
        return os.environ | secrets | {"PYTHONPATH": str(ROOT)}
