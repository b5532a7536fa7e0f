"""Leaves folded by processes of this machine.

A partial sum comes back as a file of its values, which is mapped, added and gone: no process ever holds it twice.
This module is the first that a worker loads, so it loads nothing that would start threads of its own."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from device_sdk.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from server.aggregation.deltas import DeltaSum
    from server.aggregation.tree_reduction import Leaf
    from server.storage.blobs import BlobStore

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Processes:
    """Owns up to ``count`` processes, started with the first round that has something for them. Not for several threads
    at once. Where one dies, all are started anew for the next round that is folded, which may be this one again."""

    def __init__(self, place: Path | str, count: int) -> None:
        """place: of the blobs. ConfigurationError: no positive count."""
        if count < 1:
            raise ConfigurationError(f"workers: found {count}, expected at least 1")
        self._place, self._count = place, count
        self._pool: ProcessPoolExecutor | None = None

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        from server.aggregation.tree_reduction import bounded_map

        if self._pool is None:
            # Spawned: a fork of a process with threads may begin with their locks held.
            self._pool = ProcessPoolExecutor(self._count, get_context("spawn"), initializer=_begin)
        pool = self._pool
        with tempfile.TemporaryDirectory(prefix="leaves-") as folder:

            def submit(leaf: Leaf) -> tuple[Leaf, Path, Future[tuple[float, int]]]:
                path = Path(folder) / uuid4().hex
                return leaf, path, pool.submit(_fold, self._place, leaf, path)

            def wait(started: tuple[Leaf, Path, Future[tuple[float, int]]]) -> DeltaSum:
                leaf, path, future = started
                return _mapped(path, leaf, *future.result())

            try:
                yield from bounded_map(tasks, submit, wait, self._count)
            except BrokenProcessPool as error:
                self.close()
                raise StateError("a worker ended while it folded deltas; was there enough memory?") from error

    def close(self) -> None:
        """Waits for what they are doing."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _begin() -> None:
    """In a worker: one thread, and none without the process that started it, however that ends."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the server ends them
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _fold(place: Path | str, leaf: Leaf, path: Path) -> tuple[float, int]:
    """In a worker -> weight and reports of the partial sum whose values are in ``path`` then."""
    from server.aggregation.tree_reduction import fold_leaf

    total = fold_leaf(_blobs(place), leaf)
    with path.open("wb") as file:
        for name in leaf.shapes:
            file.write(total.sum[name].data)
    return total.weight, total.reports


@lru_cache(maxsize=1)
def _blobs(place: Path | str) -> BlobStore:
    from server.storage.objects import open_blobs

    return open_blobs(place, tidy=False)


def _mapped(path: Path, leaf: Leaf, weight: float, reports: int) -> DeltaSum:
    import numpy as np

    from server.aggregation.deltas import DeltaSum
    from server.aggregation.tree_reduction import dtype_of

    values, start, found = np.memmap(path, dtype_of(leaf.grid), "r"), 0, {}
    path.unlink()  # the mapping holds what is left of it
    for name, shape in leaf.shapes.items():
        size = math.prod(shape)
        found[name] = np.asarray(values[start : start + size]).reshape(shape)
        start += size
    return DeltaSum(found, weight, reports)
