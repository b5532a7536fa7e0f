"""How the search reads the joiner's scores: a few numbers of each of many small arrays.

B: prefixes; K: frames; V: pieces, blank 0. numpy takes microseconds for each, native code a fraction of one; both give
the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.native_kernels import native_module

__all__ = ["above", "edges"]

Float = NDArray[np.float32]

_native: Any = native_module()
_quick = _native is not None and _native.LEVEL > 0
_VECTOR = 16  # pieces that native code reads at once
_FEW = 512  # pieces; of more, lists of all that are above take longer than numpy does


def edges(scores: Float) -> tuple[list[list[float]], list[list[float]]]:
    """Log-probabilities [B, K, V] of blank and of the best label: two lists of B lists of K."""
    prefixes, frames, pieces = scores.shape
    if _quick and pieces % _VECTOR == 0 and scores.flags.c_contiguous:
        found: tuple[list[list[float]], list[list[float]]] = _native.edges(prefixes, frames, pieces, scores)
        return found
    return scores[:, :, 0].tolist(), np.maximum.reduce(scores[:, :, 1:], axis=2).tolist()


def above(scores: Float, prefix: int, frame: int, limit: float, most: int) -> tuple[list[int], list[float]]:
    """Labels of one row of [B, K, V] whose log-probability is above ``limit``, the ``most`` best of them, and these."""
    if _quick and scores.shape[2] <= _FEW and scores.flags.c_contiguous:
        _, frames, pieces = scores.shape
        labels, values = _native.above(prefix * frames + frame, pieces, scores, limit)
        if len(labels) > most:
            best = sorted(range(len(labels)), key=values.__getitem__)[-most:]
            labels, values = [labels[at] for at in best], [values[at] for at in best]
        return labels, values
    row = scores[prefix, frame, 1:]
    places = (row > limit).nonzero()[0]
    if len(places) > most:
        places = np.argpartition(row, -most)[-most:]
    return (places + 1).tolist(), row[places].tolist()
