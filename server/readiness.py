"""Whether a server could serve the next request: looked at for real, and not more often than every few seconds."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from server.registry.models import blob_name, current_version, find_model
from server.settings import ServerSettings
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.ticks import Seen

log = logging.getLogger("idiolect.server")

CHECKS = ("database", "schema", "model", "blobs", "disk", "rounds")
SECONDS = 5.0
"""How long what was found is told to others who ask."""


@dataclass(frozen=True, slots=True)
class Ready:
    """checks: of what, and whether it is in order. ``database`` answers; ``schema`` is of the newest migration;
    ``model``: one is published and its weights are there, as they were stored; ``blobs`` can be written, read and
    deleted; ``disk`` has room left; ``rounds``: the thread that moves them runs, and it and every unfinished round had
    a good tick lately. tick_ages: seconds since then (:mod:`server.ticks`)."""

    checks: Mapping[str, bool]
    model_version: str | None
    tick_ages: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return "ready" if all(self.checks.values()) else "unready"


class Readiness:
    """Owns what was found last. Anybody may ask, so asking often costs nothing."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._found: Ready | None = None
        self._alive = False
        self._until = 0.0

    def look(
        self, database: Database, blobs: BlobStore, settings: ServerSettings, alive: bool, seen: Callable[[], Seen]
    ) -> Ready:
        """alive: whether the thread that moves rounds runs. seen: what it did."""
        with self._turn:
            if self._found is None or time.monotonic() >= self._until or self._alive != alive:
                self._found, self._alive = _look(database, blobs, settings, alive, seen), alive
                self._until = time.monotonic() + SECONDS
            return self._found


def _look(
    database: Database, blobs: BlobStore, settings: ServerSettings, alive: bool, seen: Callable[[], Seen]
) -> Ready:
    model: list[str] = []
    ages: dict[str, float] = {}

    def move() -> bool:
        found = seen()
        ages.update((name, round(max(0.0, age), 1)) for name, age in found.ages.items())
        return alive and not found.stands_still(settings.standing_seconds, settings.step_seconds)

    def published() -> bool:
        with database.read() as connection:
            row = find_model(connection, current_version(connection, "model"))
        model.append(row.version)
        if not blobs.has(blob_name(row.sha256)):
            return False
        blobs.file(blob_name(row.sha256))  # StateError: other bytes lie there
        return True

    looks: dict[str, Callable[[], bool]] = {
        "database": database.answers,
        "schema": database.is_current,
        "model": published,
        "blobs": lambda: _stores(blobs),
        "disk": lambda: shutil.disk_usage(settings.lock_folder).free >= settings.limits.free_bytes,
        "rounds": move,
    }
    checks = {}
    for name in CHECKS:
        try:
            checks[name] = looks[name]()
        except Exception as error:  # whatever it is: the caller is told which check, the log why
            log.warning("not ready: %s", name, exc_info=error)
            checks[name] = False
    return Ready(checks, model[0] if model else None, ages)


def _stores(blobs: BlobStore) -> bool:
    name, content = f"probes/{uuid4().hex}", b"ready"
    blobs.put(name, content)
    try:
        return blobs.get(name) == content
    finally:
        blobs.delete(name)
