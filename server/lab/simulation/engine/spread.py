"""The parts of a round computed on a Ray cluster, to the same bits as in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from server.aggregation.ray_cluster import RayCluster
from server.lab.simulation.engine.rounds import Engine, Part, computed
from server.lab.simulation.engine.updates import Sent

__all__ = ["RaySpread"]


class RaySpread:
    """Owns a :class:`~server.aggregation.ray_cluster.RayCluster`. Network and population reach its machines once, the
    published weights once a round; every worker has one thread."""

    def __init__(self, address: str, count: int | None = None) -> None:
        """address, count: as of the cluster."""
        self._cluster = RayCluster(address, count)
        self._kept: tuple[Engine | None, int, Any] = None, 0, None

    def __call__(self, run: Engine, base: Mapping[str, Tensor], parts: Iterable[Part]) -> Iterator[Sent]:
        known, session, kept = self._kept
        if known is not run or session != self._cluster.session:
            kept = self._cluster.keep(replace(run, spread=None))
            self._kept = run, self._cluster.session, kept
        return self._cluster.map(_computed, [kept, self._cluster.keep(dict(base))], parts)

    def close(self) -> None:
        self._kept = None, 0, None
        self._cluster.close()


def _computed(run: Engine, base: Mapping[str, Tensor], part: Part) -> Sent:
    """On a machine of the cluster."""
    import torch

    torch.set_num_threads(1)
    return computed(
        run, {name: values.clone() for name, values in base.items()}, part
    )  # Ray's own cannot be written to
