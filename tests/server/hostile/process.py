"""A server in a process of its own with tight limits, and clients that speak bytes to it."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.forks import Forked, await_ready

HEAD_SECONDS, BODY_SECONDS = 1.0, 1.0
CONNECTIONS = 250


def serve(folder: str) -> None:
    """What the process runs."""
    from server.serve import run
    from server.settings import Limits
    from tests.server.parties import initial, settings

    limits = Limits(head_seconds=HEAD_SECONDS, body_seconds=BODY_SECONDS, connections=CONNECTIONS)
    ready = Path(folder) / "ready.json"
    run(settings(Path(folder), limits=limits), initial(), host="127.0.0.1", port=0, ready_file=ready)


class HostileServer:
    """Owns the process; its log is ``folder``'s ``server.log``. program: ``module:function`` that it runs, given the
    folder."""

    def __init__(self, folder: Path, program: str = f"{__name__}:serve") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        self._process = Forked(program, str(folder), out=self.log)
        self.url: str = await_ready(self._process, folder)["url"]
        self.port = urlsplit(self.url).port or 0

    @property
    def memory(self) -> int:
        """Bytes that the process holds now."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        assert found is not None
        return 1024 * int(found[1])

    @property
    def descriptors(self) -> int:
        """Files and connections that the process holds open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def running(self) -> bool:
        return self._process.poll() is None

    def connect(self, timeout: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()


def exchange(server: HostileServer, *parts: bytes, pause: float = 0.0) -> tuple[bytes, float]:
    """(everything that comes back until the server ends the connection, seconds that took). The parts are sent one
    after the other, ``pause`` seconds apart, as long as the server takes them."""
    begun, found = time.monotonic(), b""
    with server.connect() as line:
        with suppress(OSError):
            for part in parts:
                line.sendall(part)
                time.sleep(pause)
        with suppress(ConnectionResetError):
            while chunk := line.recv(1 << 16):
                found += chunk
    return found, time.monotonic() - begun


def status_of(answer: bytes) -> int:
    """Of the first answer; 0 where there is none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
