"""Named points at which a process may die: on each side of every statement, file, removal and request."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from device_sdk.state.files import SealedFiles
from device_sdk.state.store import Store


class Points:
    """Counts the points that a life passes and ends the process, as SIGKILL does, at the one asked for. name: of the
    point, empty for none; at: the how manieth of this name, from 1. told: gets the name before the process ends."""

    def __init__(self, name: str, at: int, told: Callable[[str], None]) -> None:
        self.passed: Counter[str] = Counter()
        self._deadly = (name, at)
        self._told = told

    def install(self) -> None:
        """From here on, in this process."""
        self._around(Store, "_run", lambda store, statement, *values: f"sql {' '.join(statement.split()[:2])}")
        self._around(os, "fsync", lambda descriptor: "fsync")
        self._around(Path, "unlink", lambda path, **options: f"unlink {path.suffix}")
        self._around(httpx.Client, "send", lambda client, request, **options: f"request {_short(request.url)}")
        write = SealedFiles.write

        def half_written(files: SealedFiles, name: str, sealed: bytes) -> None:
            self._pass("file", before=lambda: (files._folder / name).write_bytes(sealed[: len(sealed) // 2]))
            write(files, name, sealed)

        SealedFiles.write = half_written  # type: ignore[method-assign]

    def _around(self, owner: Any, name: str, label: Callable[..., str]) -> None:
        inner = getattr(owner, name)

        def passing(*arguments: Any, **options: Any) -> Any:
            where = label(*arguments, **options)
            self._pass(f"before {where}")
            answer = inner(*arguments, **options)
            self._pass(f"after {where}")
            return answer

        setattr(owner, name, passing)

    def _pass(self, name: str, before: Callable[[], object] | None = None) -> None:
        self.passed[name] += 1
        if (name, self.passed[name]) == self._deadly:
            if before is not None:
                before()
            self._told(name)
            os.kill(os.getpid(), signal.SIGKILL)


def _short(url: httpx.URL) -> str:
    return "/".join(part for part in url.path.split("/") if part.replace("-", "").isalpha())[:24]
