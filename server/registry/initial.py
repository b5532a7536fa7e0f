"""What a server starts from: one bundle's weights, word list and background, without its graphs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from device_sdk.errors import ConfigurationError
from server.aggregation.validation import validate_shapes
from server.registry.marginals import MarginalEntry, add_marginals, find_marginals, validate_probabilities
from server.registry.models import add_model, current_version, find_model, load, publish, store
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.storage.schema import publications


@dataclass(frozen=True, slots=True)
class InitialModel:
    """weights: parameters and constants, float32; background: float64 [words]; words: the list itself, if known."""

    weights: Mapping[str, NDArray[np.float32]]
    version: str
    words_digest: str
    background: NDArray[np.float64]
    words: tuple[str, ...] = ()


def initial_from_bundle(path: Path | None) -> InitialModel:
    """Read a bundle (None: the packaged default). Raises BundleError naming file and field."""
    from device_sdk.bundle import Bundle

    bundle = Bundle.open(path)
    background, words = np.asarray(bundle.background, np.float64), bundle.words
    return InitialModel(dict(bundle.weights), bundle.version, words.digest, background, tuple(words.words))


def register_initial(database: Database, blobs: BlobStore, initial: InitialModel, now: float) -> None:
    """Register the first model and version 0 of the marginals in an empty database; else check that they fit. Raises
    ConfigurationError when the database belongs to another word list or other parameter shapes."""
    validate_probabilities(initial.background, initial.background.size)
    with database.read() as connection:
        started = _is_started(connection)
        if started:
            model = find_model(connection, current_version(connection, "model"))
            row = find_marginals(connection, 0)
    if started:
        if row.words_digest != initial.words_digest:
            raise ConfigurationError(
                f"bundle {initial.version}: word list {initial.words_digest[:12]} differs from the database's "
                f"{row.words_digest[:12]}; start a new database for a new word list"
            )
        validate_shapes(initial.weights, {name: array.shape for name, array in load(blobs, model.sha256).items()})
        return
    validate_shapes(initial.weights, {name: array.shape for name, array in initial.weights.items()})
    stored = store(blobs, initial.weights, {"version": initial.version})
    counts = np.zeros(initial.background.size, np.int64)
    entry = MarginalEntry(initial.words_digest, initial.background, counts, 0.0)
    with database.write() as connection:
        if _is_started(connection):
            return  # another process was first
        add_model(connection, initial.version, stored, now=now, note="from the bundle")
        add_marginals(connection, 0, entry, now=now, note="background")
        publish(connection, "model", initial.version, now, "from the bundle")
        publish(connection, "marginals", 0, now, "background")


def _is_started(connection: Connection) -> bool:
    return connection.execute(select(publications.c.id).limit(1)).first() is not None
