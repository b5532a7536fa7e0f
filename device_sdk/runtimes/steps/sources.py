"""Which sources the native steps are made of. A build runs this file alone, before anything is installed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

__all__ = ["SOURCES", "digest"]

SOURCES = ("native.c", "kernels.h")


def digest(package: Path) -> str:
    """Of the sources in a folder."""
    found = sha256()
    for name in SOURCES:
        found.update((package / name).read_bytes())
    return found.hexdigest()
