"""Means that a minority of devices cannot pull far: medians and trimmed means of every coordinate, and Krum.

K: deltas of a round; D: values of a model. They need all deltas together, so deltas are spooled to a file of K x D
float32 and read back in blocks of columns: memory stays at one block, whatever K is, and K x K distances for Krum. All
are functions of the set of deltas, so neither the order nor the weights of devices matter.

Deltas of a few utterances are all but orthogonal to each other: what devices share is small beside what each has alone,
and that is not symmetric in any coordinate. So medians and trimmed means lose a good part of what the mean learns even
where everybody is honest, where a mean over the devices that Krum leaves in loses none of it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError

__all__ = ["Robust", "Spool", "cosine_weights", "krum_weights", "robust_mean", "spooled"]

Weights = Mapping[str, NDArray[np.float32]]
Robust = Literal["median", "trimmed", "krum", "cosine"]

BLOCK_BYTES = 1 << 25
"""Of all deltas together in one block of columns."""


class Spool:
    """Deltas on disk as rows of one matrix [K, D] float32, in the order of ``shapes``. Owned by :func:`spooled`."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.values = sum(math.prod(shape) for shape in self.shapes.values())
        self.digests: list[bytes] = []
        self._path = path

    @property
    def reports(self) -> int:
        """K."""
        return len(self.digests)

    def append(self, delta: Weights) -> None:
        """Write one more row. The caller has validated the delta."""
        digest = sha256()
        with self._path.open("ab") as file:
            for name in self.shapes:
                values = np.ascontiguousarray(delta[name], "<f4").data
                file.write(values)
                digest.update(values)
        self.digests.append(digest.digest())

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
    """The average that ``mode`` says; zeros for no deltas.

    ``median``: of every coordinate. ``trimmed``: the mean of every coordinate once the ``trimmed`` share of the largest
    and of the smallest values is dropped. ``krum``: the mean of whole deltas once the ``trimmed`` share of the devices
    is dropped that lies farthest from the others (multi-Krum: Blanchard et al. 2017, section 4). ``cosine``: the mean
    of whole deltas without those that point away from the others, the ``trimmed`` share of the devices at most; where
    nobody does, nothing is lost. (FLTrust, Cao et al. 2021, leaves out who points away from a delta that the server
    trusts; here the other devices are what is trusted.)

    The last two bound deltas to the median of their L2 norms (a bound as in Sun et al. 2019 that needs no tuning), so
    that less than half of the devices cannot make the result longer than an honest delta; in ``cosine``, an attacker
    that does not point away counts by its share. Shares are rounded up to whole devices; of K devices at most
    (K - 1) / 2 are dropped, and Krum's proof wants them below (K - 2) / 2.

    Raises ConfigurationError for a share that leaves nothing.
    """
    if not 0 <= trimmed < 0.5:
        raise ConfigurationError(f"trimmed: found {trimmed!r}, expected a share in [0, 0.5)")
    count = spool.reports
    dropped = min(math.ceil(trimmed * count), (count - 1) // 2) if count else 0
    if not count:
        flat = np.zeros(spool.values, np.float32)
    elif mode == "krum":
        flat = _weighted(spool, lambda products: krum_weights(products, dropped))
    elif mode == "cosine":
        flat = _weighted(spool, lambda products: cosine_weights(products, dropped))
    else:
        flat = _by_coordinate(spool, 0 if mode == "median" else dropped, mode == "median")
    result, start = {}, 0
    for name, shape in spool.shapes.items():
        size = math.prod(shape)
        result[name] = flat[start : start + size].reshape(shape)
        start += size
    return result


def _by_coordinate(spool: Spool, dropped: int, median: bool) -> NDArray[np.float32]:
    """[D]. dropped: values on either side of every coordinate's mean."""
    flat, start = np.empty(spool.values, np.float32), 0
    for block in spool.blocks(max(1, BLOCK_BYTES // (4 * spool.reports))):
        part = flat[start : start + block.shape[1]]
        if median:
            part[:] = np.median(block, axis=0)
        else:
            block.sort(axis=0)
            np.mean(block[dropped : spool.reports - dropped], axis=0, out=part)
        start += block.shape[1]
    return flat


def _weighted(spool: Spool, weigh: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float32]:
    """[D]. weigh: products of deltas with deltas [K, K] -> what each counts [K]. Rows are taken in the
    order of their digests: sums and ties know no other order."""
    count = spool.reports
    order = sorted(range(count), key=spool.digests.__getitem__)
    columns = max(1, BLOCK_BYTES // (12 * count))  # as float32, and as float64
    products = np.zeros((count, count))
    for block in spool.blocks(columns):
        rows = block[order].astype(np.float64)
        products += rows @ rows.T
    weights = weigh(products)
    flat, start = np.empty(spool.values, np.float32), 0
    for block in spool.blocks(columns):
        flat[start : start + block.shape[1]] = weights @ block[order].astype(np.float64)
        start += block.shape[1]
    return flat


def krum_weights(products: NDArray[np.float64], dropped: int) -> NDArray[np.float64]:
    """What each of K deltas counts in multi-Krum's mean [K], its scale down to the median norm included.

    products: of deltas with deltas [K, K]. dropped: devices, f. A device's score is the sum of its squared distances to
    the K - f - 2 nearest others, at least one; those with the f highest scores get weight 0, of equal scores the last.
    """
    count, scales = len(products), _scales(products)
    bounded = products * np.outer(scales, scales)
    squares = np.diag(bounded)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * bounded, 0.0)
    np.fill_diagonal(distances, 0.0)
    nearest = max(1, count - dropped - 2)
    scores = np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1)
    kept = np.argsort(scores, kind="stable")[: count - dropped]
    weights = np.zeros(count)
    weights[kept] = scales[kept] / kept.size
    return weights


def cosine_weights(products: NDArray[np.float64], dropped: int) -> NDArray[np.float64]:
    """What each of K deltas counts in the mean of those that agree [K], its scale down to the median norm included.

    products: of deltas with deltas [K, K]. dropped: devices, at most. While the cosines of some device with all others
    that are left sum to less than zero, the one with the lowest sum is dropped, of equal ones the first.
    """
    norms = np.sqrt(np.diag(products))
    lengths = np.where(norms > 0, norms, 1.0)
    cosines = products / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0.0)
    left = np.ones(len(products), bool)
    for _ in range(dropped):
        sums = np.where(left, cosines @ left, np.inf)
        lowest = int(sums.argmin())
        if sums[lowest] >= 0:
            break
        left[lowest] = False
    return np.where(left, _scales(products), 0.0) / left.sum()


def _scales(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors [K] that scale deltas down to the median of their norms; none is scaled up."""
    norms = np.sqrt(np.diag(products))
    bound, scales = float(np.median(norms)), np.ones(len(products))
    np.divide(bound, norms, out=scales, where=norms > bound)
    return scales
