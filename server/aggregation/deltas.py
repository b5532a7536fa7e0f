"""Weighted averaging of model deltas as a stream: the server holds one sum, whatever the number of devices.

The sum is a monoid: ``add`` folds one delta in, ``merge`` joins two partial sums, so a round can be folded in pieces by
several workers. Deltas are added in report-id order, so a resumed round repeats the same float32 result bit for bit.

Up to ``UPDATES`` deltas wait and are then folded together: block by block, every ``RUN`` of them are summed, then every
two of those sums, while the block is in the processor's cache. So each delta is read from memory once, the total once
for ``UPDATES`` of them, and a value is rounded fewer times than by adding one delta after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import saxpy

__all__ = [
    "BLOCK",
    "UPDATES",
    "DeltaSum",
    "Weights",
    "add",
    "add_steps",
    "finish",
    "fold",
    "init",
    "merge",
    "weighted_sum",
]

Weights = Mapping[str, NDArray[np.float32]]
Float = NDArray[np.float32]

BLOCK = 1 << 17
"""Values per block: sums of them stay in the second level of cache."""
RUN = 4
UPDATES = 2 * RUN
"""Deltas that are folded together: what a sum holds in memory beside itself, at most."""


@dataclass(frozen=True, slots=True)
class DeltaSum:
    """sum: per parameter, float32, sum of weight * delta of what is folded, or int64, in steps of a grid
    (:mod:`server.privacy.delta_noise`), of deltas of weight 1; weight: sum of all weights; reports: how many were
    added; waiting: the last of them with their weights, not folded yet."""

    sum: Mapping[str, NDArray[Any]]
    weight: float
    reports: int
    waiting: tuple[tuple[Weights, float], ...] = ()


def init(shapes: Mapping[str, tuple[int, ...]], dtype: type[np.float32 | np.int64] = np.float32) -> DeltaSum:
    """The sum of no deltas."""
    return DeltaSum({name: np.zeros(shape, dtype) for name, shape in shapes.items()}, 0.0, 0)


def add(state: DeltaSum, delta: Weights, weight: float) -> DeltaSum:
    """``state`` with one more delta of the given weight.

    ``state`` is consumed: its arrays become the result's, so that one model size of memory is enough. The delta is kept
    until it is folded and must not change. The caller has validated it
    (:func:`server.aggregation.validation.validate_delta`).
    """
    waiting = (*state.waiting, (delta, weight))
    state = DeltaSum(state.sum, state.weight + weight, state.reports + 1, waiting)
    return fold(state) if len(waiting) == UPDATES else state


def add_steps(state: DeltaSum, delta: Mapping[str, NDArray[np.int64]]) -> DeltaSum:
    """``state``, a sum in steps, with one more delta of them, exactly. It is consumed."""
    for name, total in state.sum.items():
        np.add(total, delta[name], out=total)
    return replace(state, weight=state.weight + 1.0, reports=state.reports + 1)


def fold(state: DeltaSum) -> DeltaSum:
    """``state`` with nothing waiting. It is consumed."""
    if not state.waiting:
        return state
    for name, total in state.sum.items():
        weighted_sum(total, [delta[name] for delta, _ in state.waiting], [weight for _, weight in state.waiting])
    return replace(state, waiting=())


def merge(left: DeltaSum, right: DeltaSum) -> DeltaSum:
    """The sum of two partial sums over the same parameters, whose order is the order of rounding, where they round.

    Both are consumed: what waits is folded, and the arrays of ``left``, which must be writable, become the result's, so
    that two model sizes of memory are enough.
    """
    left, right = fold(left), fold(right)
    for name, total in left.sum.items():
        np.add(total, right.sum[name], out=total)
    return DeltaSum(left.sum, left.weight + right.weight, left.reports + right.reports)


def finish(state: DeltaSum, denominator: float | None = None) -> dict[str, NDArray[np.float32]]:
    """Mean delta: the sum over its total weight, or over a fixed denominator. ``state`` is consumed by folding.

    Under differential privacy the denominator must not depend on who reported, so it is given. An empty sum has a mean
    of zero.
    """
    state = fold(state)
    divisor = state.weight if denominator is None else denominator
    factor = np.float32(1.0 / divisor if divisor else 0.0)
    return {name: total * factor for name, total in state.sum.items()}


def weighted_sum(total: Float, values: Sequence[Float], weights: Sequence[float]) -> None:
    """``total += sum_i weights_i * values_i`` in place, pairwise, block by block, without temporaries of their size.

    total: C-contiguous float32 of any shape; values: arrays of that shape.
    """
    flat = total.reshape(-1)
    sources = [np.ascontiguousarray(each, np.float32).reshape(-1) for each in values]
    scratch = np.empty(-(-len(sources) // RUN) * min(BLOCK, flat.size), np.float32)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        parts = [source[start : start + BLOCK] for source in sources]
        np.add(part, _pairwise(parts, weights, scratch), out=part)


def _pairwise(parts: Sequence[Float], weights: Sequence[float], scratch: Float) -> Float:
    """The weighted sum of equally long vectors, in the first of ``scratch``."""
    size = parts[0].size
    sums = []
    for start in range(0, len(parts), RUN):
        place = scratch[start // RUN * size : (start // RUN + 1) * size]
        np.multiply(parts[start], np.float32(weights[start]), out=place)
        for at in range(start + 1, min(start + RUN, len(parts))):
            saxpy(parts[at], place, a=weights[at])  # in place, in one pass where numpy takes two
        sums.append(place)
    while len(sums) > 1:
        for at in range(0, len(sums) - 1, 2):
            np.add(sums[at], sums[at + 1], out=sums[at])
        sums = sums[::2]
    return sums[0]
