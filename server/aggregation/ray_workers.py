"""Leaves folded on a Ray cluster, whose machines reach the same blobs: a shared folder or an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_sdk.errors import ConfigurationError, IdiolectError, MissingExtraError, StateError
from server.aggregation.folding import Leaf, ahead, fold_leaf
from server.aggregation.processes import THREADS

if TYPE_CHECKING:
    from server.aggregation.deltas import DeltaSum

__all__ = ["RayWorkers"]


class RayWorkers:
    """Owns a connection to Ray, made with the first round that is folded. Its machines have this server installed.

    A partial sum comes back through Ray's object store, where it is read in place. Ray repeats what a lost machine was
    folding.
    """

    def __init__(self, place: Path | str, address: str, count: int | None = None) -> None:
        """address: ``ray://host:10001``, ``auto``, or ``local`` for a cluster of this machine only. count: leaves under
        way at a time; None: one for each processor of the cluster. MissingExtraError: Ray is not installed."""
        if count is not None and count < 1:
            raise ConfigurationError(f"workers: found {count}, expected at least 1")
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError(f"ray {address}: {error}; run: pip install 'idiolect-server[ray]'") from error
        self._ray: Any = ray
        self._place, self._address, self._count = place, address, count
        self._folded: Any = None

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        if self._folded is None:
            self._connect()
        try:
            count = self._count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            yield from ahead(tasks, lambda leaf: self._folded.remote(self._place, leaf), self._result, count)
        except self._ray.exceptions.RayError as error:
            self.close()
            raise StateError(f"ray {self._address}: {type(error).__name__}: {_first_line(error)}") from error

    def close(self) -> None:
        if self._folded is not None:
            self._folded = None
            self._ray.shutdown()

    def _connect(self) -> None:
        # Numerical libraries begin as many threads as there are processors, in each of as many workers.
        environment = {"env_vars": dict.fromkeys(THREADS, "1")}
        local = {"num_cpus": self._count, "include_dashboard": False} if self._address == "local" else {}
        try:
            self._ray.init(
                self._address, runtime_env=environment, log_to_driver=False, logging_level="warning", **local
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise StateError(f"ray {self._address}: cannot be reached ({_first_line(error)}); is it there?") from error
        self._folded = self._ray.remote(_fold)

    def _result(self, promise: Any) -> DeltaSum:
        try:
            found: DeltaSum = self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, IdiolectError):
                raise error.cause from error
            raise
        return found


def _fold(place: Path | str, leaf: Leaf) -> DeltaSum:
    """On a machine of the cluster."""
    from server.storage.blobs import open_blobs

    return fold_leaf(open_blobs(place, tidy=False), leaf)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
