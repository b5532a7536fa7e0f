"""Adapters: factors of low rank beside the matrices, which steps move in place of the matrices (Hu et al. 2021, LoRA).

A matrix W [out, in] with factors up [out, r] and down [r, in] is used as W + up down. Recognizer, teacher, delta and
state know that sum only: what steps change of it has rank r at most, so the factors are found in it again whenever they
are not at hand. There is no second copy of what was learned that could disagree with the first.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.subsets import factor_names
from device_sdk.errors import LearningError
from device_sdk.learning.preconditioner import Scales
from device_sdk.learning.step import Arrays

__all__ = ["factor_scales", "factorized", "merged"]

Float = NDArray[np.float32]

_ITERATIONS = 2
_TINY = float(np.finfo(np.float32).tiny)


def factorized(
    weights: Arrays, start: Arrays, matrices: Collection[str], rank: int, generator: np.random.Generator
) -> dict[str, Float]:
    """Factors of what steps changed: up @ down is weights - start, as far as that is of rank r; by their names.

    rank: r, or a matrix' smaller side where that is less. down: [r, in], orthonormal rows; those that no change has
    used yet are random, and up [out, r] is 0 there, so that the sum is as it was.
    """
    factors: dict[str, Float] = {}
    for name in matrices:
        changed = (weights[name] - start[name]).astype(np.float64)
        out, width = changed.shape
        # Subspace iteration (Halko et al. 2011, 4.5) from random directions, which are kept where nothing has changed.
        basis = generator.standard_normal((width, min(rank, out, width)))
        for _ in range(_ITERATIONS):
            basis = np.linalg.qr(changed.T @ (changed @ basis) + _TINY * basis)[0]
        up, down = factor_names(name)
        factors[up] = (changed @ basis).astype(np.float32)
        factors[down] = np.ascontiguousarray(basis.T, np.float32)
    return factors


def merged(weights: Arrays, before: Arrays, after: Arrays, matrices: Collection[str]) -> dict[str, Float]:
    """The weights once their factors went from ``before`` to ``after``.

    LearningError: the step leaves values that are not finite; the arrays given are as they were.
    """
    moved = dict(weights)
    for name in matrices:
        up, down = factor_names(name)
        moved[name] = weights[name] + (after[up] @ after[down] - before[up] @ before[down])
        if not np.all(np.isfinite(moved[name])):
            raise LearningError(f"adapters {name}: the step leaves values that are not finite; refused")
    return moved


def factor_scales(scales: Scales, matrices: Collection[str]) -> dict[str, tuple[Float, ...]]:
    """The preconditioner's factors for adapters: along an axis that a factor shares with its matrix the matrix' own,
    times their mean along the other."""
    found: dict[str, tuple[Float, ...]] = {}
    for name in matrices:
        (rows, columns), (up, down) = scales[name], factor_names(name)
        one = np.ones(1, np.float32)
        found[up] = rows * columns.mean(dtype=np.float32), one
        found[down] = one, columns * rows.mean(dtype=np.float32)
    return found
