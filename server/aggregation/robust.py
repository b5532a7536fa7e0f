"""Means that a minority of devices cannot pull far: the median and the trimmed mean of every coordinate.

K: deltas of a round; D: values of a model. They need all deltas of a coordinate at once, so deltas are spooled to a
file of K x D float32 and read back in blocks of columns: memory stays at one block, whatever K is. Both are functions
of the set of deltas, so neither the order nor the weights of devices matter.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError

__all__ = ["Robust", "Spool", "robust_mean", "spooled"]

Weights = Mapping[str, NDArray[np.float32]]
Robust = Literal["median", "trimmed"]

BLOCK_BYTES = 1 << 25
"""Of all deltas together in one block of columns."""


class Spool:
    """Deltas on disk as rows of one matrix [K, D] float32, in the order of ``shapes``. Owned by :func:`spooled`."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.values = sum(math.prod(shape) for shape in self.shapes.values())
        self.reports = 0
        self._path = path

    def append(self, delta: Weights) -> None:
        """Write one more row. The caller has validated the delta."""
        with self._path.open("ab") as file:
            for name in self.shapes:
                file.write(np.ascontiguousarray(delta[name], "<f4").data)
        self.reports += 1

    def blocks(self, columns: int) -> Iterator[NDArray[np.float32]]:
        """[K, at most ``columns``] from left to right, each a copy."""
        rows = np.memmap(self._path, "<f4", "r", shape=(self.reports, self.values))
        for start in range(0, self.values, columns):
            yield np.array(rows[:, start : start + columns], np.float32)


@contextmanager
def spooled(
    deltas: Iterable[Weights], shapes: Mapping[str, tuple[int, ...]], folder: Path | None = None
) -> Iterator[Spool]:
    """The deltas in a temporary file, which is deleted afterwards. folder: where it may grow to K model sizes."""
    with tempfile.TemporaryDirectory(prefix="deltas-", dir=folder) as place:
        spool = Spool(Path(place) / "rows", shapes)
        for delta in deltas:
            spool.append(delta)
        yield spool


def robust_mean(spool: Spool, mode: Robust, trimmed: float = 0.2) -> dict[str, NDArray[np.float32]]:
    """The median of every coordinate, or the mean of what is left once the ``trimmed`` share of the largest and of the
    smallest values is dropped, rounded up to whole devices on either side. No deltas: zeros.

    Raises ConfigurationError for a share that leaves nothing.
    """
    if not 0 <= trimmed < 0.5:
        raise ConfigurationError(f"trimmed: found {trimmed!r}, expected a share in [0, 0.5)")
    count = spool.reports
    flat = np.zeros(spool.values, np.float32)
    if count:
        dropped = 0
        if mode == "trimmed":
            dropped = min(math.ceil(trimmed * count), (count - 1) // 2)
        columns = max(1, BLOCK_BYTES // (4 * count))
        start = 0
        for block in spool.blocks(columns):
            part = flat[start : start + block.shape[1]]
            if mode == "median":
                part[:] = np.median(block, axis=0)
            else:
                block.sort(axis=0)
                np.mean(block[dropped : count - dropped], axis=0, out=part)
            start += block.shape[1]
    result, start = {}, 0
    for name, shape in spool.shapes.items():
        size = math.prod(shape)
        result[name] = flat[start : start + size].reshape(shape)
        start += size
    return result
