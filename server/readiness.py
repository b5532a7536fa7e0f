"""Whether a server could serve the next request: looked at for real, and not more often than every few seconds."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import uuid4

from server.registry.models import blob_name, find_model
from server.registry.publications import current_version
from server.settings import ServerSettings
from server.storage.blobs import BlobStore
from server.storage.database import Database

__all__ = ["CHECKS", "Readiness", "Ready"]

log = logging.getLogger("idiolect.server")

CHECKS = ("database", "schema", "model", "blobs", "disk", "rounds")
SECONDS = 5.0
"""How long what was found is told to others who ask."""


@dataclass(frozen=True, slots=True)
class Ready:
    """checks: of what, and whether it is in order.

    ``database`` answers; ``schema`` is of the newest migration; ``model``: one is published and its weights are there;
    ``blobs`` can be written, read and deleted; ``disk`` has room left; ``rounds``: the thread that moves them runs.
    """

    checks: Mapping[str, bool]
    model_version: str | None

    @property
    def status(self) -> str:
        return "ready" if all(self.checks.values()) else "unready"


class Readiness:
    """Owns what was found last. Anybody may ask, so asking often costs nothing."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._found: Ready | None = None
        self._until = 0.0

    def look(self, database: Database, blobs: BlobStore, settings: ServerSettings, rounds: bool) -> Ready:
        with self._turn:
            if self._found is None or time.monotonic() >= self._until or self._found.checks["rounds"] != rounds:
                self._found = _look(database, blobs, settings, rounds)
                self._until = time.monotonic() + SECONDS
            return self._found


def _look(database: Database, blobs: BlobStore, settings: ServerSettings, rounds: bool) -> Ready:
    model: list[str] = []

    def published() -> bool:
        with database.read() as connection:
            row = find_model(connection, current_version(connection, "model"))
        model.append(row.version)
        return blobs.has(blob_name(row.sha256))

    looks: dict[str, Callable[[], bool]] = {
        "database": database.answers,
        "schema": database.is_current,
        "model": published,
        "blobs": lambda: _stores(blobs),
        "disk": lambda: shutil.disk_usage(settings.lock_folder).free >= settings.limits.free_bytes,
        "rounds": lambda: rounds,
    }
    checks = {}
    for name in CHECKS:
        try:
            checks[name] = looks[name]()
        except Exception as error:  # whatever it is: the caller is told which check, the log why
            log.warning("not ready: %s", name, exc_info=error)
            checks[name] = False
    return Ready(checks, model[0] if model else None)


def _stores(blobs: BlobStore) -> bool:
    name, content = f"probes/{uuid4().hex}", b"ready"
    blobs.put(name, content)
    try:
        return blobs.get(name) == content
    finally:
        blobs.delete(name)
