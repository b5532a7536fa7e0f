"""``idiolect serve`` as an operator runs it, on one address for its whole life: started, killed, saved and restored."""

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from server.lab.simulation.process import ServerProcess
from tests.server.parties import ENROLMENT, OPERATOR


class OperatedServer(ServerProcess):
    """Owns the process and ``folder``, which holds the database, the blobs, the log and what a lost server left."""

    def __init__(self, folder: Path, bundle: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        super().__init__(folder, str(bundle), "--port", str(port), *options)
        self.url, self.token, self.operator_token = f"http://127.0.0.1:{port}", ENROLMENT, OPERATOR
        self.peak_bytes = 0

    def look(self) -> None:
        """Notes the most memory that a process has held so far."""
        if (process := self.process) is not None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                self.peak_bytes = max(self.peak_bytes, 1024 * int(found[1]))

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        self.look()
        return super().stop(number)

    def command(self, *arguments: str) -> None:
        """A command of ``idiolect``. AssertionError where it fails."""
        words = [sys.executable, "-m", "device_sdk.cli", *arguments]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"idiolect {' '.join(arguments)}: {done.stdout}{done.stderr}"

    def save(self, archive: Path) -> None:
        self.command("backup", str(archive), "--database", str(self.database), "--json")
        self.command("backup", "--verify", str(archive))

    def lose(self) -> Path:
        """The server's machine is gone, with all that it held. Returns where that lies, for whoever judges."""
        self.stop(signal.SIGKILL)
        lost = self.folder / "lost"
        lost.mkdir()
        for path in self.folder.glob("server.*"):
            if path.suffix != ".log":
                shutil.move(path, lost / path.name)
        return lost
