"""Which weights stay: a series of thousands of rounds makes more than a disk holds. Rows, and so lineage, stay."""

from typing import Any

from sqlalchemy import Connection, Row, insert, select

from server.plans.round import UNDERWAY
from server.problems import Refusal
from server.registry.models import blob_name, current_version, list_models
from server.storage.blobs import BlobStore
from server.storage.schema import removed_weights, rollouts, rounds

LEAST = 2
"""Newest models that every server keeps."""


def superfluous(connection: Connection, keep: int) -> list[str]:
    """Digests of the weights and optimizer states that nothing needs any more, sorted. Needed are the ``keep`` newest
    models, the current one, those of a running rollout, those that rounds under way begin from or have made, what they
    began as, and the teachers of all of these."""
    models = {str(row.version): row for row in list_models(connection)}
    underway = select(rounds.c.base_model, rounds.c.model_version).where(rounds.c.state.in_(UNDERWAY))
    tried = select(rollouts.c.version, rollouts.c.base).where(rollouts.c.state == "running")
    teachers = {row.teacher for row in models.values()}
    wanted = {*[version for version in models if version not in teachers][:keep], current_version(connection, "model")}
    for query in (underway, tried):
        wanted |= {version for row in connection.execute(query) for version in row if version is not None}
    wanted |= {version for version, row in models.items() if row.parent is None}
    wanted |= {str(models[version].teacher) for version in wanted if models[version].teacher is not None}
    needed = {digest for version in wanted for digest in _digests(models[version])}
    return sorted({digest for row in models.values() for digest in _digests(row)} - needed)


def is_due(connection: Connection, blobs: BlobStore, keep: int) -> bool:
    """Whether :func:`remove_old` has anything to do."""
    known = known_removed(connection)
    return any(digest not in known or blobs.has(blob_name(digest)) for digest in superfluous(connection, keep))


def remove_old(connection: Connection, blobs: BlobStore, keep: int, now: float) -> int:
    """Delete what :func:`superfluous` names, and write down that it is gone by intention, in the caller's transaction.
    Returns how many files went."""
    found, known = superfluous(connection, keep), known_removed(connection)
    fresh = [{"sha256": digest, "removed_at": now} for digest in found if digest not in known]
    if fresh:
        connection.execute(insert(removed_weights), fresh)
    present = [name for name in map(blob_name, found) if blobs.has(name)]
    for name in present:
        blobs.delete(name)
    return len(present)


def known_removed(connection: Connection) -> set[str]:
    """Digests of what was ever removed; the same content may have come back since."""
    return set(connection.execute(select(removed_weights.c.sha256)).scalars())


def lacking(connection: Connection, blobs: BlobStore) -> tuple[list[str], list[str]]:
    """Digests of weights and optimizer states that are not there: (by intention, lost)."""
    every = {digest for row in list_models(connection) for digest in _digests(row)}
    spare = known_removed(connection) & set(superfluous(connection, LEAST))
    absent = sorted(digest for digest in every if not blobs.has(blob_name(digest)))
    return [digest for digest in absent if digest in spare], [digest for digest in absent if digest not in spare]


def check_present(blobs: BlobStore, row: Row[Any]) -> None:
    """Raises Refusal (410) for a model whose weights were removed."""
    if not blobs.has(blob_name(row.sha256)):
        detail = f"the weights of model {row.version} were removed; this server keeps the newest only"
        raise Refusal(410, "model_removed", detail, "version")


def check_marginals_present(row: Row[Any]) -> None:
    """Raises Refusal (410) for marginals whose contents were removed with the round that made them."""
    if not row.probabilities:
        detail = f"marginals {row.version} were removed with their round; this server keeps the newest only"
        raise Refusal(410, "marginals_removed", detail, "version")


def _digests(row: Row[Any]) -> set[str]:
    return {str(digest) for digest in (row.sha256, row.optimizer_sha256) if digest is not None}
