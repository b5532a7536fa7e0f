"""Servers in a process of their own and in this one, and connections to them that are listened to or break."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import httpx
import numpy as np

from tests.forks import ServerProcess

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from server.settings import ServerSettings


def serve(folder: str, bundle: str, port: str, database: str) -> None:
    """What the process runs."""
    from server.registry.initial import initial_from_bundle
    from server.serve import run
    from tests.server.parties import settings

    logging.basicConfig(level=logging.DEBUG)
    changes = {"database": database} if database else {}
    own, ready = settings(Path(folder), **changes), Path(folder) / "ready.json"
    run(own, initial_from_bundle(Path(bundle)), host="127.0.0.1", port=int(port), ready_file=ready)


class LiveServer(ServerProcess):
    """A server over a bundle; its log is at level DEBUG. port: 0 is any; database: URL of one that lies elsewhere."""

    def __init__(self, folder: Path, bundle: Path, port: int = 0, database: str = "") -> None:
        super().__init__(folder, f"{__name__}:serve", str(bundle), str(port), database)


@contextmanager
def hosted(settings: ServerSettings, bundle: Bundle) -> Iterator[str]:
    """The URL of a server in a thread of this process, which begins with the bundle's weights."""
    import uvicorn

    from server.app import create_app
    from server.registry.initial import InitialModel

    initial = InitialModel(dict(bundle.weights), bundle.version, bundle.words.digest, np.asarray(bundle.background))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    # uvicorn's own log_config would close what other handlers write to, absl's too: pytest's capture of standard error
    config = uvicorn.Config(create_app(settings, initial), port=port, log_config=None, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


class LosesReports(httpx.HTTPTransport):
    """Passes requests on, but for reports (those whose path has ``which`` in it); where these are ``delivered``, their
    receipts are lost."""

    def __init__(self, which: str = "/rounds/", *, delivered: bool = False) -> None:
        super().__init__()
        self.which, self.delivered = which, delivered

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        report = self.which in request.url.path
        if report and not self.delivered:
            raise httpx.ConnectError("the connection broke", request=request)
        answer = super().handle_request(request)
        if report:
            answer.close()
            raise httpx.ReadError("the receipt was lost")
        return answer


class _Relay:
    """Owns a port that passes connections on to a server."""

    def __init__(self, url: str) -> None:
        self._target = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                for pass_on in self._passing(near, socket.create_connection(self._target)):
                    threading.Thread(target=pass_on, daemon=True).start()

    def _passing(self, near: socket.socket, far: socket.socket) -> tuple[Callable[[], None], ...]:
        """What passes on both directions of a connection."""
        raise NotImplementedError


class Tap(_Relay):
    """Keeps both directions of every connection in ``folder``."""

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._connections = folder, 0
        super().__init__(url)

    def _passing(self, near: socket.socket, far: socket.socket) -> tuple[Callable[[], None], ...]:
        self._connections += 1
        path = self._folder / f"{self._connections:03d}"
        return partial(_copy, near, far, path.with_suffix(".up")), partial(_copy, far, near, path.with_suffix(".down"))


def _copy(source: socket.socket, sink: socket.socket, path: Path) -> None:
    with path.open("wb", buffering=0) as log, suppress(OSError):
        while chunk := source.recv(1 << 16):
            log.write(chunk)
            sink.sendall(chunk)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class CuttingLine(_Relay):
    """Every answer of more than ``most`` bytes breaks off after as many: the connection is closed."""

    def __init__(self, url: str, most: int) -> None:
        self.most, self.broken = most, 0
        super().__init__(url)

    def _passing(self, near: socket.socket, far: socket.socket) -> tuple[Callable[[], None], ...]:
        left = [self.most]
        return partial(self._up, near, far, left), partial(self._down, far, near, left)

    def _up(self, near: socket.socket, far: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while chunk := near.recv(1 << 16):
                left[0] = self.most  # another request of the same connection
                far.sendall(chunk)
            far.shutdown(socket.SHUT_WR)

    def _down(self, far: socket.socket, near: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while chunk := far.recv(1 << 14):
                near.sendall(chunk[: left[0]])
                left[0] = max(0, left[0] - len(chunk))
                if left[0] == 0:
                    self.broken += 1
                    break
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
