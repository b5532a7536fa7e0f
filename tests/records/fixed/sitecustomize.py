"""Imported by every Python that has this folder on its path: the same randomness and the same time in every run.

All randomness of the standard library, and of numpy's generators without a seed, begins with ``os.urandom``. Only the
checkout that is the working directory is imported, wherever else the environment has installed the packages from."""

import os
import random
import sys
import time
from hashlib import shake_256
from itertools import count
from pathlib import Path
from typing import Any

import safetensors

_stream, _draws = "", count()
_deserialize = safetensors.deserialize


def restart(stream: str) -> None:
    """Begin a stream of random bytes: what one part of a run draws does not move the next."""
    global _stream, _draws
    _stream, _draws = stream, count()
    random.seed(stream)


def urandom(size: int) -> bytes:
    """The next bytes of the stream."""
    return shake_256(f"{_stream} {next(_draws)}".encode()).digest(size)


def deserialize(content: bytes) -> list[tuple[str, Any]]:
    """By name; the library's own order, in which sums over parameters are taken, is another in every process."""
    return sorted(_deserialize(content), key=lambda entry: entry[0])


def _installed(path: str) -> bool:
    """Whether an editable install of another checkout put this on the import path."""
    place = Path(path).resolve()
    return place != Path.cwd() and place.name != "site-packages" and (place / "device_sdk" / "__init__.py").is_file()


os.urandom = urandom
random._urandom = urandom  # type: ignore[attr-defined]
time.time = lambda: 1_700_000_000.0
time.time_ns = lambda: 1_700_000_000 * 10**9
safetensors.deserialize = deserialize
restart(os.environ.get("RECORDS_STREAM", ""))
sys.path[:] = [path for path in sys.path if not _installed(path)]
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
