"""Downloads as differences to what a device has: made once, when first asked for, and kept beside the models.

Anybody may ask, so what can be asked for is little: ways to what devices are to have now, from what they had lately."""

import threading
import time
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, select

from device_sdk.checkin.updates import difference
from device_sdk.errors import ProtocolError
from server.problems import Refusal
from server.registry.models import blob_name, current_version, find_model, load
from server.registry.retention import check_present
from server.storage.blobs import CHECKED_SECONDS, BlobStore
from server.storage.schema import models, publications, rollouts

RECENT = 8
"""Versions published last, rollouts included, from which there is a way; and from what a lineage began with."""
WORTH = 0.9
"""A difference of more than this share of the whole file is not offered."""


@dataclass(frozen=True, slots=True)
class Way:
    """base, target: rows of models. targets: digests of all weights that devices are to have now."""

    base: Row[Any]
    target: Row[Any]
    targets: frozenset[str]

    @property
    def etag(self) -> str:
        return f'"{self.base.sha256[:32]}-{self.target.sha256[:32]}"'


def find_way(connection: Connection, version: str, base: str) -> Way:
    """Raises Refusal: 404 ``unknown_model``, or ``no_difference`` where none is offered."""
    target, start = find_model(connection, version), find_model(connection, base)
    tried = select(rollouts.c.version).where(rollouts.c.state == "running")
    wanted = {current_version(connection, "model"), *connection.execute(tried).scalars()}
    rows = [find_model(connection, name) for name in wanted]
    rows += [find_model(connection, row.teacher) for row in rows if row.teacher is not None]
    offered = target.version in {row.version for row in rows} and start.version in _recent(connection)
    if not offered or start.sha256 == target.sha256:
        raise _none(version, base)
    return Way(start, target, frozenset(row.sha256 for row in rows))


class Differences:
    """Owns the making of differences, one at a time. Those that lead to what no device is to have are removed."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._making = threading.Lock()
        self._sound: dict[str, tuple[str, float]] = {}  # digests of those that lead where they should, and until when

    def file(self, way: Way) -> Path:
        """Raises Refusal: 404 ``no_difference`` where it would be hardly shorter, 410 where weights are gone;
        StateError where they are damaged. A damaged difference is made anew."""
        name = f"differences/{way.base.sha256}-{way.target.sha256}"
        with self._making:
            if not self._is_sound(name, way):
                for row in (way.base, way.target):
                    check_present(self._blobs, row)
                content = self._blobs.get(blob_name(way.target.sha256))
                made = difference.make(load(self._blobs, way.base.sha256), content)
                self._blobs.put(name, made if len(made) <= WORTH * len(content) else b"")
                for other in list(self._blobs.names("differences")):
                    if other.rpartition("-")[2] not in way.targets:
                        self._blobs.delete(other)
                        self._sound.pop(other, None)
                self._keep(name)
        path = self._blobs.file(name)
        if not path.stat().st_size:
            raise _none(way.target.version, way.base.version)
        return path

    def _is_sound(self, name: str, way: Way) -> bool:
        """Whether it is there and as it was made: by following it, once in this process, and then by its digest."""
        if not self._blobs.has(name):
            return False
        known = self._sound.get(name)
        if known is not None and time.monotonic() < known[1]:
            return True
        if known is not None and self._digest(name) != known[0]:
            return False
        if known is None and (content := self._blobs.get(name)):
            try:
                made = difference.apply(load(self._blobs, way.base.sha256), content, way.target.size)
            except (ProtocolError, ValueError):
                return False
            if sha256(made).hexdigest() != way.target.sha256:
                return False
        self._keep(name)
        return True

    def _keep(self, name: str) -> None:
        self._sound[name] = self._digest(name), time.monotonic() + CHECKED_SECONDS

    def _digest(self, name: str) -> str:
        with self._blobs.file(name).open("rb") as file:
            return file_digest(file, "sha256").hexdigest()


def _recent(connection: Connection) -> set[str]:
    latest = func.max(publications.c.id)
    query = select(publications.c.version).where(publications.c.kind.in_(("model", "rollout")))
    query = query.group_by(publications.c.version).order_by(latest.desc()).limit(RECENT)
    found = set(connection.execute(query).scalars())
    found |= set(connection.execute(select(models.c.version).where(models.c.parent.is_(None))).scalars())
    teachers = select(models.c.teacher).where(models.c.version.in_(found), models.c.teacher.is_not(None))
    return found | set(connection.execute(teachers).scalars())


def _none(version: str, base: str) -> Refusal:
    detail = f"model {version[:64]}: no difference to {base[:64]} is kept; take all of it"
    return Refusal(404, "no_difference", detail, "base")
