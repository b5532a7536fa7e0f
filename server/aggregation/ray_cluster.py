"""Leaves folded on a Ray cluster, by machines that reach the same blobs (a shared folder or an object store)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_sdk.errors import ConfigurationError, IdiolectError, MissingExtraError, StateError
from server.aggregation.processes import THREADS
from server.aggregation.tree_reduction import Leaf, bounded_map, fold_leaf

if TYPE_CHECKING:
    from server.aggregation.deltas import DeltaSum


class RayWorkers:
    """Owns a connection to Ray, made with the first round that is folded. Its machines have this server installed.
    Partial sums come back through Ray's object store, where they are read in place. Ray repeats what a lost machine was
    working on."""

    def __init__(self, place: Path | str, address: str, count: int | None = None) -> None:
        """place: of the blobs, as every machine reaches it. address: ``ray://host:10001``, ``auto``, or ``local`` for a
        cluster of this machine only. count: leaves under way at a time; None: one for each processor of the cluster.
        MissingExtraError: Ray is not installed."""
        if count is not None and count < 1:
            raise ConfigurationError(f"workers: found {count}, expected at least 1")
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError(f"ray {address}: {error}; run: pip install 'idiolect-server[ray]'") from error
        self._ray: Any = ray
        self._place, self._address, self._count = place, address, count
        self._connected = False

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        """Raises what folding raises, where that is an error of this project; StateError where Ray fails."""
        self._connect()
        remote = self._ray.remote(_fold)
        try:
            count = self._count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            yield from bounded_map(tasks, lambda leaf: remote.remote(self._place, leaf), self._result, count)
        except self._ray.exceptions.RayError as error:
            self.close()
            raise StateError(f"ray {self._address}: {type(error).__name__}: {_first_line(error)}") from error

    def close(self) -> None:
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def _connect(self) -> None:
        if self._connected:
            return
        # Numerical libraries begin as many threads as there are processors, in each of as many workers.
        environment = {"env_vars": dict.fromkeys(THREADS, "1")}
        local = {"num_cpus": self._count, "include_dashboard": False} if self._address == "local" else {}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        try:
            self._ray.init(self._address, runtime_env=environment, **quiet, **local)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise StateError(f"ray {self._address}: cannot be reached ({_first_line(error)}); is it there?") from error
        self._connected = True

    def _result(self, promise: Any) -> Any:
        try:
            return self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, IdiolectError):
                raise error.cause from error
            raise


def _fold(place: Path | str, leaf: Leaf) -> DeltaSum:
    """On a machine of the cluster."""
    from server.storage.objects import open_blobs

    return fold_leaf(open_blobs(place, tidy=False), leaf)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
