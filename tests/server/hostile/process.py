"""A server in a process of its own with tight limits, and clients that speak bytes to it."""

import json
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.forks import ServerProcess

SECONDS = 1.0
"""For the head of a request, and for its body."""
CONNECTIONS = 250


def serve(folder: str) -> None:
    """What the process runs."""
    from server.settings import Limits
    from tests.server import parties

    limits = Limits(head_seconds=SECONDS, body_seconds=SECONDS, connections=CONNECTIONS)
    parties.serve(folder, parties.initial(), limits=limits)


class HostileServer(ServerProcess):
    """What the system says of it, and connections to it. program: ``module:function``, which is given the folder."""

    def __init__(self, folder: Path, program: str = f"{__name__}:serve") -> None:
        super().__init__(folder, program)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def proc(self) -> Path:
        """The system's folder about the process."""
        return Path(f"/proc/{self.running.pid}")

    @property
    def memory(self) -> int:
        """Bytes that the process holds now."""
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", (self.proc / "status").read_text())[1])

    def runs(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def connect(self, timeout: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)


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


def refusal_of(answer: bytes) -> tuple[int, str]:
    """Status and code of a problem."""
    return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])["code"]
