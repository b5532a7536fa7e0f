"""Models by version: weights in the blob store under their sha256, lineage and figures in the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, insert, select

from device_sdk.bundle.architecture import PRESETS
from device_sdk.errors import StateError
from device_sdk.wire.delta_codec import parts
from device_sdk.wire.messages import Part
from server.aggregation.weights_file import dump_weights, parse_weights
from server.problems import Refusal
from server.storage.blobs import BlobStore
from server.storage.schema import models, publications

CONSTANTS = frozenset(PRESETS["tiny"].constant_shapes())
"""Entries of a weights file that no delta moves."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Weights that are already on disk. sha256, size: of the safetensors bytes."""

    sha256: str
    size: int


def store(blobs: BlobStore, weights: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]) -> StoredModel:
    """Write weights to the blob store, before a model row points to them."""
    content = dump_weights(weights, metadata)
    digest = sha256(content).hexdigest()
    blobs.put(blob_name(digest), content)
    return StoredModel(digest, len(content))


def load(blobs: BlobStore, digest: str) -> dict[str, NDArray[np.float32]]:
    """StateError: they are not there, or damaged."""
    return parse_weights(blobs.get(blob_name(digest)))


def blob_name(digest: str) -> str:
    return f"models/{digest}.safetensors"


def trainable(weights: Mapping[str, NDArray[np.float32]], part: Part = "whole") -> dict[str, tuple[int, ...]]:
    """Names and shapes that a delta of a part of these weights must have."""
    shapes = {name: tuple(values.shape) for name, values in sorted(weights.items()) if name not in CONSTANTS}
    return {name: shapes[name] for name in parts(shapes, part)}


def add_model(connection: Connection, version: str, stored: StoredModel, *, now: float, **columns: Any) -> None:
    """Register a version. columns: parent, round_id, optimizer_sha256, figures, note, and teacher, the version that
    devices learn from beside it, already registered. Raises Refusal (409) if the version exists with other weights."""
    if (row := connection.execute(_FIND, {"wanted": version}).first()) is not None:
        if row.sha256 == stored.sha256:
            return
        raise Refusal(409, "version_exists", f"model {version} exists with other weights; choose a new version")
    own = {"version": version, "sha256": stored.sha256, "size": stored.size, "created_at": now}
    connection.execute(insert(models).values(own | {"figures": {}, "note": ""} | columns))


def find_model(connection: Connection, version: str) -> Row[Any]:
    """The row of a version. Raises Refusal (404)."""
    row = connection.execute(_FIND, {"wanted": version}).first()
    if row is None:
        raise Refusal(404, "unknown_model", f"model {version[:64]!r} is not in the registry", "version")
    return row


_FIND = select(models).where(models.c.version == bindparam("wanted"))


def models_since_teacher(connection: Connection, row: Row[Any]) -> int:
    """How many models of a lineage, with ``row`` the newest, were made since its teacher was; 0 without a teacher."""
    if row.teacher is None:
        return 0
    made = find_model(connection, row.teacher).round_id
    count = 0
    while row.teacher is not None and row.round_id != made:
        count += 1
        parent = find_model(connection, row.parent) if row.parent is not None else None
        if parent is None or parent.teacher != row.teacher:
            break
        row = parent
    return count


def list_models(connection: Connection) -> list[Row[Any]]:
    """All versions, the newest first."""
    return list(connection.execute(select(models).order_by(models.c.created_at.desc(), models.c.version)))


def view(row: Row[Any]) -> dict[str, Any]:
    """A version as operators see it."""
    return {name: value for name, value in row._asdict().items() if name != "optimizer_sha256"}


def publish(connection: Connection, kind: str, version: str | int, now: float, note: str) -> None:
    """Make a version current. kind: ``model`` or ``marginals``."""
    connection.execute(insert(publications).values(kind=kind, version=str(version), at=now, note=note))


def current_version(connection: Connection, kind: str) -> str:
    """Raises StateError when nothing was ever published: the server was started without a bundle."""
    version = connection.execute(_NEWEST, {"wanted": kind}).scalar()
    if version is None:
        raise StateError(f"registry: no {kind} published; start the server with a bundle")
    return str(version)


_NEWEST = (
    select(publications.c.version)
    .where(publications.c.kind == bindparam("wanted"))
    .order_by(publications.c.id.desc())
    .limit(1)
)


def history(connection: Connection, kind: str) -> list[dict[str, Any]]:
    """Every publication of a kind, the newest first."""
    query = select(publications).where(publications.c.kind == kind).order_by(publications.c.id.desc())
    return [{"version": row.version, "at": row.at, "note": row.note} for row in connection.execute(query)]
