"""A server in a process of its own, and a tap on the line to it that keeps every byte."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["LiveServer", "Tap"]

ROOT = Path(__file__).parents[1]
PROGRAM = """
import logging, sys
from pathlib import Path
from server.commands.serve import run
from server.registry.initial import initial_from_bundle
from tests.server.parties import settings
logging.basicConfig(level=logging.DEBUG)
folder = Path(sys.argv[1])
changes = {"database": sys.argv[4]} if sys.argv[4] else {}
run(settings(folder, **changes), initial_from_bundle(Path(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[3]),
    ready_file=folder / "ready.json")
"""


class LiveServer:
    """Owns a server process over ``folder``, which holds its database, its blobs and its log, at level DEBUG. port: 0
    is any; database: the URL of one that lies elsewhere."""

    def __init__(self, folder: Path, bundle: Path, port: int = 0, database: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder), str(bundle), str(port), database],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 300
        while not ready.exists():
            assert self._process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        self.folder = folder
        self.url: str = json.loads(ready.read_text())["url"]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(60)


class Tap:
    """Owns a port that passes everything on to a server and back, and keeps both directions in ``folder``."""

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._target = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._connections += 1
                for name, source, sink in (("up", near, far), ("down", far, near)):
                    path = self._folder / f"{self._connections:03d}.{name}"
                    threading.Thread(target=_copy, args=(source, sink, path), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket, path: Path) -> None:
    with path.open("wb", buffering=0) as log, suppress(OSError):
        while chunk := source.recv(1 << 16):
            log.write(chunk)
            sink.sendall(chunk)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
