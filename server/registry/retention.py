"""Which weights stay: a series of thousands of rounds makes more than a disk holds. Rows, and so lineage, stay."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select

from server.problems import Refusal
from server.registry.models import blob_name, list_models
from server.registry.publications import current_version
from server.rounds.states import NEXT, RoundState
from server.storage.blobs import BlobStore
from server.storage.schema import canaries, rounds

__all__ = ["check_present", "remove_old", "superfluous"]


def superfluous(connection: Connection, keep: int) -> list[str]:
    """Digests of the weights and optimizer states that nothing needs any more, sorted.

    Needed are the ``keep`` newest models, the current one, those of a running canary, those that rounds under way
    begin from or have made, what they began as, and the teachers of all of these.
    """
    models = {str(row.version): row for row in list_models(connection)}
    ended = [state for state in RoundState if not NEXT[state]]
    underway = connection.execute(
        select(rounds.c.base_model, rounds.c.model_version).where(rounds.c.state.not_in(ended))
    )
    teachers = {row.teacher for row in models.values()}
    newest = [version for version in models if version not in teachers][:keep]
    wanted = set(newest) | {current_version(connection, "model")}
    wanted |= {version for row in underway for version in row if version is not None}
    tried = connection.execute(select(canaries.c.version, canaries.c.base).where(canaries.c.state == "running"))
    wanted |= {version for row in tried for version in row}
    wanted |= {version for version, row in models.items() if row.parent is None}
    wanted |= {str(models[version].teacher) for version in wanted if models[version].teacher is not None}
    needed = {digest for version in wanted for digest in _digests(models[version])}
    return sorted({digest for row in models.values() for digest in _digests(row)} - needed)


def remove_old(connection: Connection, blobs: BlobStore, keep: int) -> int:
    """Delete what :func:`superfluous` names. Returns how many files went."""
    removed = 0
    for digest in superfluous(connection, keep):
        if blobs.has(blob_name(digest)):
            blobs.delete(blob_name(digest))
            removed += 1
    return removed


def check_present(blobs: BlobStore, row: Row[Any]) -> None:
    """Raises Refusal (410) for a model whose weights were removed."""
    if not blobs.has(blob_name(row.sha256)):
        detail = f"the weights of model {row.version} were removed; this server keeps the newest only"
        raise Refusal(410, "model_removed", detail, "version")


def _digests(row: Row[Any]) -> set[str]:
    return {str(digest) for digest in (row.sha256, row.optimizer_sha256) if digest is not None}
