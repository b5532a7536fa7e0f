"""Global marginals by version, each with the released counts of its lineage. Version 0 is the background."""

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, func, insert, select

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import Marginals
from server.problems import Refusal
from server.storage.schema import marginals


@dataclass(frozen=True, slots=True)
class MarginalEntry:
    """probabilities: float64 [words]; counts: int64 [words], cumulative released counts; variance: of their noise."""

    words_digest: str
    probabilities: NDArray[np.float64]
    counts: NDArray[np.int64]
    variance: float


def add_marginals(connection: Connection, version: int, entry: MarginalEntry, *, now: float, **columns: Any) -> None:
    """Register a version. columns: parent, round_id, figures, note."""
    probabilities = entry.probabilities.astype("<f8").tobytes()
    own = {
        "version": version,
        "sha256": sha256(probabilities).hexdigest(),
        "words_digest": entry.words_digest,
        "created_at": now,
        "probabilities": probabilities,
        "counts": entry.counts.astype("<i8").tobytes(),
        "variance": entry.variance,
    }
    connection.execute(insert(marginals).values(own | {"figures": {}, "note": ""} | columns))


def next_version(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(marginals.c.version), -1))).scalar_one()) + 1


def find_marginals(connection: Connection, version: int) -> Row[Any]:
    """The row of a version. Raises Refusal (404)."""
    row = connection.execute(_FIND, {"wanted": version}).first() if 0 <= version < 1 << 62 else None
    if row is None:
        raise Refusal(404, "unknown_marginals", f"marginals {version} are not in the registry", "version")
    return row


_FIND = select(marginals).where(marginals.c.version == bindparam("wanted"))


def list_marginals(connection: Connection) -> list[Row[Any]]:
    """All versions, the newest first."""
    return list(connection.execute(select(marginals).order_by(marginals.c.version.desc())))


def read_probabilities(row: Row[Any]) -> NDArray[np.float64]:
    return np.frombuffer(row.probabilities, dtype="<f8")


def read_counts(row: Row[Any]) -> NDArray[np.int64]:
    return np.frombuffer(row.counts, dtype="<i8")


def message(row: Row[Any]) -> Marginals:
    """What devices get."""
    probabilities = b64encode(row.probabilities).decode()
    return Marginals(marginals_version=row.version, words_digest=row.words_digest, probabilities=probabilities)


def validate_probabilities(probabilities: NDArray[np.float64], words: int) -> None:
    """Raises ProtocolError unless it is a distribution over ``words`` words, positive everywhere."""
    if probabilities.shape != (words,):
        raise ProtocolError(f"probabilities: found {probabilities.size} values, expected {words}")
    if not np.isfinite(probabilities).all() or not (probabilities > 0).all():
        raise ProtocolError("probabilities: found a value that is not a positive number; devices divide by them")
    if abs(float(probabilities.sum()) - 1.0) > 1e-6:
        raise ProtocolError(f"probabilities: sum is {float(probabilities.sum()):.9g}, expected 1")


def view(row: Row[Any]) -> dict[str, Any]:
    """A version as operators see it, without its arrays."""
    hidden = ("probabilities", "counts", "variance")
    columns = {name: value for name, value in row._asdict().items() if name not in hidden}
    return columns | {"noise_deviation": row.variance**0.5}
