"""Weighted averaging of model deltas as a stream: the server holds one sum, whatever the number of devices.

The sum is a monoid: ``add`` folds one delta in, ``merge`` joins two partial sums, so a round can be folded in pieces.
Deltas are added in report-id order, so a resumed round repeats the same float32 result bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DeltaSum", "Weights", "add", "finish", "init", "merge", "scaled_add"]

Weights = Mapping[str, NDArray[np.float32]]
BLOCK = 1 << 16
"""Values per block of a scaled addition: two float32 blocks stay in the first two levels of cache."""


@dataclass(frozen=True, slots=True)
class DeltaSum:
    """sum: per parameter, float32, sum of weight * delta; weight: sum of weights; reports: how many were added."""

    sum: Weights
    weight: float
    reports: int


def init(shapes: Mapping[str, tuple[int, ...]]) -> DeltaSum:
    """The sum of no deltas."""
    return DeltaSum({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, 0.0, 0)


def add(state: DeltaSum, delta: Weights, weight: float) -> DeltaSum:
    """``state`` with one more delta of the given weight.

    ``state`` is consumed: its arrays become the result's, so that one model size of memory is enough.
    The caller has validated the delta (:func:`server.aggregation.validation.validate_delta`).
    """
    for name, total in state.sum.items():
        scaled_add(total, delta[name], weight)
    return DeltaSum(state.sum, state.weight + weight, state.reports + 1)


def merge(left: DeltaSum, right: DeltaSum) -> DeltaSum:
    """The sum of two partial sums over the same parameters. Neither is consumed."""
    joined = {name: left.sum[name] + right.sum[name] for name in left.sum}
    return DeltaSum(joined, left.weight + right.weight, left.reports + right.reports)


def finish(state: DeltaSum, denominator: float | None = None) -> dict[str, NDArray[np.float32]]:
    """Mean delta: the sum over its total weight, or over a fixed denominator.

    Under differential privacy the denominator must not depend on who reported, so it is given. An empty sum has a mean
    of zero.
    """
    divisor = state.weight if denominator is None else denominator
    factor = np.float32(1.0 / divisor if divisor else 0.0)
    return {name: total * factor for name, total in state.sum.items()}


def scaled_add(total: NDArray[np.float32], values: NDArray[np.float32], weight: float) -> None:
    """``total += weight * values`` in place, block by block, without a temporary of the arrays' size."""
    if weight == 1.0:
        np.add(total, values, out=total)
        return
    flat, source = total.reshape(-1), np.ascontiguousarray(values).reshape(-1)
    scratch = np.empty(min(BLOCK, flat.size), np.float32)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        product = scratch[: part.size]
        np.multiply(source[start : start + BLOCK], np.float32(weight), out=product)
        np.add(part, product, out=part)
