"""A server in a process of its own, and a tap on the line to it that keeps every byte."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.forks import Forked

__all__ = ["LiveServer", "Tap", "serve"]


def serve(folder: str, bundle: str, port: str, database: str) -> None:
    """What the process runs."""
    from server.registry.initial import initial_from_bundle
    from server.serve import run
    from tests.server.parties import settings

    logging.basicConfig(level=logging.DEBUG)
    changes = {"database": database} if database else {}
    own, ready = settings(Path(folder), **changes), Path(folder) / "ready.json"
    run(own, initial_from_bundle(Path(bundle)), host="127.0.0.1", port=int(port), ready_file=ready)


class LiveServer:
    """Owns a server process over ``folder``, which holds its database, its blobs and its log, at level DEBUG. port: 0
    is any; database: the URL of one that lies elsewhere."""

    def __init__(self, folder: Path, bundle: Path, port: int = 0, database: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        log = folder / "server.log"
        self._process = Forked(f"{__name__}:serve", str(folder), str(bundle), str(port), database, out=log)
        deadline = time.monotonic() + 300
        while not ready.exists():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        self.folder = folder
        self.url: str = json.loads(ready.read_text())["url"]

    def stop(self) -> None:
        self._process.send(signal.SIGTERM)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()


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
