"""Deltas in whole steps of a grid: sums of those are exact, so what one device adds to one is its own delta alone.

A sum in float32 is rounded at every addition, by what the others sent: then one device more or less can move it by
more than the bound of a delta, which is all that noise is made for. Here every value is cut to a whole number of steps,
and a delta beyond the bound is scaled down to it; both only make values smaller, so no delta on the grid is longer than
the bound. Integers add up in any order to the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid", "in_steps", "in_units"]

Floats = Mapping[str, NDArray[np.float32]]
Steps = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Grid:
    """step: width, in the unit of a delta's values. bound: the largest L2 norm of a delta on the grid; None leaves it
    to what was accepted, where a delta holds noise of its own."""

    step: float
    bound: float | None = None


def in_steps(delta: Floats, grid: Grid) -> dict[str, NDArray[np.int64]]:
    """The delta in whole steps, no value farther from zero than it was, and in its L2 norm, times ``step``, at most the
    bound, exactly. The caller has validated it: its values are finite, and below 2^62 steps."""
    # What float64 rounds here, a few parts in 2^53 in all, is less than what is taken off.
    factor = (1 - 2.0**-48) / grid.step
    if grid.bound is not None:
        factor *= min(1.0, grid.bound / max(_norm_at_most(delta), np.finfo(np.float64).tiny))
    return {name: np.trunc(values.astype(np.float64) * factor).astype(np.int64) for name, values in delta.items()}


def in_units(total: Steps, grid: Grid) -> dict[str, NDArray[np.float32]]:
    """A sum of steps in the unit of a delta's values, rounded once."""
    return {name: np.asarray(values * grid.step, np.float32) for name, values in total.items()}


def _norm_at_most(delta: Floats) -> float:
    """L2 norm, or a little above. Squares of float32 are exact in float64; their sum is rounded once a value."""
    squares = sum(float(np.square(values, dtype=np.float64).sum()) for values in delta.values())
    return math.sqrt(squares) * (1 + (8 + sum(values.size for values in delta.values())) * 2.0**-53)
