"""A line to a server that breaks in the middle of answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["CuttingLine"]


class CuttingLine:
    """Owns a port that passes connections on. Every answer of more than ``most`` bytes breaks off after as many:
    the connection is closed, or, where it ``stalls``, left open and silent. None: the line is whole."""

    def __init__(self, url: str, most: int | None = None, *, stalls: bool = False) -> None:
        self.most, self.stalls, self.broken, self.passed = most, stalls, 0, 0
        self._target = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
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
                left = [self.most]
                threading.Thread(target=self._up, args=(near, far, left), daemon=True).start()
                threading.Thread(target=self._down, args=(far, near, left), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket, left: list[int | None]) -> None:
        with suppress(OSError):
            while chunk := near.recv(1 << 16):
                left[0] = self.most  # another request of the same connection
                far.sendall(chunk)
            far.shutdown(socket.SHUT_WR)

    def _down(self, far: socket.socket, near: socket.socket, left: list[int | None]) -> None:
        with suppress(OSError):
            while chunk := far.recv(1 << 14):
                if left[0] is not None:
                    chunk, left[0] = chunk[: left[0]], max(0, left[0] - len(chunk))
                near.sendall(chunk)
                self.passed += len(chunk)
                if left[0] == 0:
                    self.broken += 1
                    while self.stalls:
                        time.sleep(1.0)
                    break
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
