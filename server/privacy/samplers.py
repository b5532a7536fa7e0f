"""Exact integer noise over whole vectors, from opendp's samplers over the system's generator.

A floating-point sampler leaks through its low-order bits; integers in fixed point do not. n: words. Counts and scales
are in fixed-point units. Randomness is secret: no seed, ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError

__all__ = ["gaussian_draws", "laplace_draws"]

Counts = NDArray[np.int64]


def laplace_draws(counts: Counts, scale: float) -> Counts:
    """``counts`` [n], each plus a draw with P(x) proportional to exp(-|x| / scale)."""
    return _drawn(_laplace(scale), counts)


def gaussian_draws(counts: Counts, deviation: float) -> Counts:
    """``counts`` [n], each plus a draw with P(x) proportional to exp(-x^2 / (2 deviation^2)) over the integers."""
    import opendp.prelude as dp

    _checked(deviation, "deviation")
    return _drawn(dp.m.make_gaussian(_domain(), dp.l2_distance(T="f64"), scale=float(deviation)), counts)


def _laplace(scale: float) -> Any:
    import opendp.prelude as dp

    _checked(scale, "scale")
    return dp.m.make_laplace(_domain(), dp.l1_distance(T="i64"), scale=float(scale))


def _domain() -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp.vector_domain(dp.atom_domain(T="i64"))


def _drawn(measurement: Any, counts: Counts) -> Counts:
    return np.asarray(measurement(counts.tolist()), dtype=np.int64)


def _checked(value: float, name: str) -> None:
    if not 0 < value < float("inf"):
        raise PrivacyError(f"{name}: found {value!r}, expected a positive number of units")
