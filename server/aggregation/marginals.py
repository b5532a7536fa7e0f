"""The global marginal: equation 6 of Liu & Peng 2020 over bounded, noised counts.

Each round's bounded counts are summed (an exact integer sum, so any order and any grouping agree), noised once, and
released. Releases of a lineage are added up: what was published before is used again at no further privacy cost, and
the noise grows with the square root of the number of rounds while the counts grow with their number. Everything after
the release (clamping, suppression, smoothing) is a function of released numbers only."""

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from device_sdk.wire.messages import FIXED_POINT

Counts = NDArray[np.int64]


def sum_counts(reports: Iterable[Mapping[int, int]], words: int) -> Counts:
    """Of validated reports, int64 [words] in units of 1 / FIXED_POINT: the numerator of equation 6, c_i q_i(w) being
    the raw count."""
    total = np.zeros(words, np.int64)
    for counts in reports:
        total[list(counts)] += np.fromiter(counts.values(), np.int64, len(counts))
    return total


def surviving_counts(
    released: Counts, variance: float, mechanism: str, suppression: float = 3.0
) -> NDArray[np.float64]:
    """Counts in words after clamping at zero and dropping what lies within the noise. released: int64 [words],
    cumulative noised counts in fixed-point units. variance: of one word's cumulative noise, in squared words.
    mechanism: that the noise is of. suppression: counts below so many of its standard deviations are dropped, and below
    as many as noise alone may reach; 0 keeps every positive count. Returns float64 [words]."""
    counts = np.maximum(released, 0).astype(np.float64) / FIXED_POINT
    deviations = max(suppression, _noise_reach(len(released), mechanism)) if suppression else 0.0
    counts[counts < deviations * np.sqrt(variance)] = 0.0
    return counts


def _noise_reach(words: int, mechanism: str) -> float:
    """How many standard deviations noise alone may reach: fewer than one word of the list is expected beyond it. With a
    list of thousands of words three deviations are passed by some of them every time, by discrete Laplace noise by one
    in 140: P(X > k sigma) = exp(-sqrt(2) k) / 2. Noise of several rounds has a lighter tail than that."""
    if words < 3:
        return 0.0
    if mechanism == "discrete_gaussian":
        return NormalDist().inv_cdf(1.0 - 1.0 / words)
    return math.log(words / 2) / math.sqrt(2)


def nearest_counts(released: Counts) -> NDArray[np.float64]:
    """The counts nearest to ``released`` that are not negative and add up to the same: equation 8 of Liu & Peng 2020,
    which leaves negative entries open, and the distribution nearest to it. All zero where noise outweighs every count.
    released: int64 [words], noised counts in fixed-point units. Returns float64 [words], in words."""
    total = float(released.sum())
    if total <= 0:
        return np.zeros(released.size)
    return nearest_distribution(released / total) * (total / FIXED_POINT)


def nearest_distribution(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distribution nearest to ``values`` [words], which sum to about 1, in the Euclidean norm. One threshold is
    subtracted from every entry before it is clamped, so the positive half of the noise does not add up to mass on words
    that nobody said."""
    descending = np.sort(values)[::-1]
    excess = np.cumsum(descending) - 1.0
    last = np.flatnonzero(descending * np.arange(1, values.size + 1) > excess)[-1]
    return np.asarray(np.maximum(values - excess[last] / (last + 1), 0.0), np.float64)


def smoothed(counts: NDArray[np.float64], background: NDArray[np.float64], smoothing: float) -> NDArray[np.float64]:
    """The global distribution, positive everywhere: q(w) = (c(w) + s u(w)) / (sum c + s), float64 [words]. Equation 6
    on the surviving counts c, mixed with the background u, whose share shrinks as evidence grows. smoothing: s > 0, in
    words."""
    mixed = counts + smoothing * background
    return np.asarray(mixed / mixed.sum(), dtype=np.float64)
