"""A mean that a minority of devices cannot pull far: without the deltas that point away from the others.

K: deltas of a round; D: values of a model. All deltas are needed together, so they are spooled to a file of K x D
float32 and read back in blocks of columns: memory stays at one block, whatever K is, and K x K products. The mean is a
function of the set of deltas: neither the order nor the weights of devices matter.

Deltas of a few utterances are all but orthogonal to each other, and not symmetric in any coordinate. So medians and
trimmed means of coordinates lose a good part of what the mean learns even where everybody is honest; this one does not.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = Mapping[str, NDArray[np.float32]]

BLOCK_BYTES = 1 << 25
"""Of all deltas together in one block of columns."""


def cosine_mean(
    deltas: Iterable[Weights], shapes: Mapping[str, tuple[int, ...]], trimmed: float = 0.2
) -> dict[str, NDArray[np.float32]]:
    """The mean of whole deltas, validated, without those that point away from the others, the ``trimmed`` share of the
    devices at most; where nobody does, nothing is lost. Zeros for no deltas.

    FLTrust (Cao et al. 2021) leaves out who points away from a delta that the server trusts; here the other devices are
    what is trusted. Deltas are bounded to the median of their L2 norms (a bound as in Sun et al. 2019 that needs no
    tuning), so that less than half of the devices cannot make the result longer than an honest delta; an attacker that
    does not point away counts by its share. The share is rounded up to whole devices, at most (K - 1) / 2 of K."""
    flat = np.zeros(sum(math.prod(shape) for shape in shapes.values()), np.float32)
    digests: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="deltas-") as place:
        path = Path(place) / "rows"  # one matrix [K, D] float32
        with path.open("wb") as file:
            for delta in deltas:
                content = b"".join(np.ascontiguousarray(delta[name], "<f4").data for name in shapes)
                file.write(content)
                digests.append(sha256(content).digest())
        if digests:
            count = len(digests)
            columns = max(1, BLOCK_BYTES // (12 * count))  # as float32, and as float64
            products = np.zeros((count, count))
            for _, rows in _blocks(path, digests, columns):
                products += rows @ rows.T
            weights = cosine_weights(products, min(math.ceil(trimmed * count), (count - 1) // 2))
            for start, rows in _blocks(path, digests, columns):
                flat[start : start + columns] = weights @ rows
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    return {name: part.reshape(shapes[name]) for name, part in zip(shapes, np.split(flat, ends[:-1]), strict=True)}


def _blocks(path: Path, digests: Sequence[bytes], columns: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(first column, [K, at most ``columns``]) from left to right, rows in the order of their digests: sums and ties
    know no other order."""
    order = sorted(range(len(digests)), key=digests.__getitem__)
    rows = np.memmap(path, "<f4", "r").reshape(len(digests), -1)
    for start in range(0, rows.shape[1], columns):
        yield start, np.array(rows[:, start : start + columns])[order].astype(np.float64)


def cosine_weights(products: NDArray[np.float64], dropped: int) -> NDArray[np.float64]:
    """What each of K deltas counts in the mean of those that agree [K], its scale down to the median norm included.
    products: of deltas with deltas [K, K]. dropped: devices, at most. While the cosines of some device with all others
    that are left sum to less than zero, the one with the lowest sum is dropped, of equal ones the first."""
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
    bound, scales = float(np.median(norms)), np.ones(len(products))
    np.divide(bound, norms, out=scales, where=norms > bound)
    return np.where(left, scales, 0.0) / left.sum()
