"""What a walk through the code passes: the files whose functions run, and where one calls back into its caller's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tests.architecture.sources import PACKAGES, ROOT

FOLDERS = tuple(f"{ROOT / package}/" for package in PACKAGES)


@dataclass(slots=True)
class Walk:
    """files: of the project, in the order in which they are first entered. back: (file, file that it calls and that
    calls back into it)."""

    files: list[str] = field(default_factory=list)
    back: set[tuple[str, str]] = field(default_factory=set)


class Tracer:
    """Watches the project's Python in this thread and in threads that begin from now on; not compiled modules."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        threading.setprofile(self._trace)
        sys.setprofile(self._trace)

    def close(self) -> None:
        self._walk = None
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def walk(self) -> Iterator[Walk]:
        """What runs within the block."""
        self._walk = walk = Walk()
        try:
            yield walk
        finally:
            self._walk = None

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> None:
        walk, path = self._walk, frame.f_code.co_filename
        if walk is None or event != "call" or not path.startswith(FOLDERS) or frame.f_code.co_name == "<module>":
            return
        file, callers = _relative(path), _callers(frame)
        if file not in walk.files:
            walk.files.append(file)
        if file in callers[1:]:
            walk.back.add((file, callers[0]))


def _callers(frame: FrameType) -> list[str]:
    """Files of the project on the stack above a frame, the nearest first, each time in a row once, without its own."""
    files = [_relative(frame.f_code.co_filename)]
    above = frame.f_back
    while above is not None:
        path = above.f_code.co_filename
        if path.startswith(FOLDERS) and _relative(path) != files[-1]:
            files.append(_relative(path))
        above = above.f_back
    return files[1:]


def _relative(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")
