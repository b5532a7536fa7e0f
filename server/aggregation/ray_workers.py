"""Leaves folded on a Ray cluster, whose machines reach the same blobs: a shared folder or an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from server.aggregation.ray_cluster import RayCluster
from server.aggregation.tree_reduction import Leaf, fold_leaf

if TYPE_CHECKING:
    from server.aggregation.deltas import DeltaSum

__all__ = ["RayWorkers"]


class RayWorkers:
    """Owns a :class:`~server.aggregation.ray_cluster.RayCluster`, which is reached with the first round that is
    folded."""

    def __init__(self, place: Path | str, address: str, count: int | None = None) -> None:
        """place: of the blobs, as every machine reaches it. address, count: of the cluster."""
        self._place, self._cluster = place, RayCluster(address, count)

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        return self._cluster.map(_fold, [self._place], tasks)

    def close(self) -> None:
        self._cluster.close()


def _fold(place: Path | str, leaf: Leaf) -> DeltaSum:
    """On a machine of the cluster."""
    from server.storage.objects import open_blobs

    return fold_leaf(open_blobs(place, tidy=False), leaf)
