"""The server's side of Liu & Peng 2020 as it is written: equations 6, 8 and 9, sampled users and deltas (sections 2.3
and 4).

K: clients, n: words. Distributions and counts are float64 [n]; a stack of them is [K, n]. The counts that devices send
are summed by :mod:`server.aggregation.marginals`, which the live rounds use; here are the same equations over
distributions, for whoever wants to read, check or simulate them. Functions raise ValueError naming the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.wire.messages import FIXED_POINT
from server.privacy.samplers import laplace_draws

__all__ = [
    "averaged_deltas",
    "clamped",
    "distribution_delta",
    "federated_average",
    "laplace_noise",
    "nearest_distribution",
    "noised_average",
    "sampled_users",
]

Array = NDArray[np.float64]
Client = TypeVar("Client")


def federated_average(distributions: ArrayLike, weights: ArrayLike) -> Array:
    """The global distribution of a round (Liu & Peng 2020, eq. 6) -> [n], sums to 1.

        q_global(w) = sum_i c_i q_i(w) / sum_i c_i

    distributions: q_i, [K, n], rows that sum to 1. weights: c_i, [K], none negative and not all 0: a client's
    pseudo-count (eq. 5).
    """
    rows = np.asarray(distributions, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all() or (rows.size and rows.min() < 0):
        raise ValueError(f"distributions: found shape {rows.shape}, expected [clients, words] of probabilities")
    if not np.allclose(rows.sum(axis=1), 1, atol=1e-6):
        raise ValueError("distributions: found a row that does not sum to 1")
    return np.asarray(_shares(weights, len(rows)) @ rows)


def distribution_delta(personal: ArrayLike, before: ArrayLike) -> Array:
    """What a device may send instead of its distribution (Liu & Peng 2020, section 2.3) -> [n], sums to 0.

    q_i(w) - q_global(w), with the global distribution before this round
    """
    own, base = np.asarray(personal, np.float64), np.asarray(before, np.float64)
    if own.shape != base.shape:
        raise ValueError(f"personal: found shape {own.shape}, expected {base.shape} as in before")
    return np.asarray(own - base)


def averaged_deltas(before: ArrayLike, deltas: ArrayLike, weights: ArrayLike) -> Array:
    """The global distribution from deltas (Liu & Peng 2020, eq. 6 in the form of section 2.3) -> [n].

        q_global(w) = before(w) + sum_i c_i (q_i(w) - before(w)) / sum_i c_i

    The same as ``federated_average`` of the distributions. deltas: [K, n]; weights: c_i, [K].
    """
    rows = np.asarray(deltas, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"deltas: found shape {rows.shape}, expected finite [clients, words]")
    return np.asarray(np.asarray(before, np.float64) + _shares(weights, len(rows)) @ rows)


def sampled_users(clients: Sequence[Client], size: int, generator: np.random.Generator) -> list[Client]:
    """The users of one round: ``size`` different ones, uniformly drawn, in the order given (Liu & Peng 2020, section
    2.3).

    No privacy is claimed from the draw: a server that chooses knows whom it chose.
    """
    if not 0 < size <= len(clients):
        raise ValueError(f"size: found {size}, expected 1 to {len(clients)} clients")
    return [clients[index] for index in sorted(generator.choice(len(clients), size, replace=False).tolist())]


def noised_average(counts: ArrayLike, noise: ArrayLike) -> Array:
    """Equation 8 of Liu & Peng 2020 to the letter -> [n], sums to 1; an entry is negative where noise outweighs its
    count.

        q(w) = (sum_i c_i q_i(w) + r(w)) / (sum_i c_i + sum_w r(w))

    counts: sum_i c_i q_i(w), [n]. noise: r(w), [n]. Raises ValueError where the denominator is not positive: such a
    ratio would turn every sign round. ``clamped`` or ``nearest_distribution`` make a distribution of the answer.
    """
    total, draws = np.asarray(counts, np.float64), np.asarray(noise, np.float64)
    if total.shape != draws.shape:
        raise ValueError(f"noise: found shape {draws.shape}, expected {total.shape} as in counts")
    numerator = total + draws
    denominator = float(numerator.sum())
    if not denominator > 0:
        raise ValueError(f"noise: counts and noise sum to {denominator:.6g}, expected more than 0; use less noise")
    return np.asarray(numerator / denominator)


def laplace_noise(words: int, epsilon: float) -> Array:
    """r(w) of equation 9 of Liu & Peng 2020 -> [n]: independent draws of Laplace(1 / epsilon), in words.

    On the grid of 1 / 256, by the exact discrete sampler: a float sampler's low-order bits give counts away. Secret
    randomness, no seed.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon: found {epsilon!r}, expected more than 0")
    scale = float(Fraction(FIXED_POINT) / Fraction(epsilon))
    return np.asarray(laplace_draws(np.zeros(words, np.int64), scale) / FIXED_POINT, np.float64)


def clamped(values: ArrayLike) -> Array:
    """Values with negative entries set to 0 and the rest divided by their sum -> [n], a distribution.

    The paper does not say what becomes of equation 8's negative entries, whose logarithm equation 1 asks for; this is
    the plain answer. All of it is a function of what was released, so it costs no privacy.
    """
    kept = np.maximum(np.asarray(values, np.float64), 0.0)
    total = float(kept.sum())
    if not total > 0:
        raise ValueError("values: found none above 0, expected a word with a positive count")
    return np.asarray(kept / total)


def nearest_distribution(values: ArrayLike) -> Array:
    """The distribution nearest to ``values`` in the Euclidean norm -> [n]: the other answer to negative entries.

    Subtracts one threshold from every entry before it clamps, so the positive half of the noise does not add up to
    mass on words that nobody said, as it does in ``clamped``.
    """
    found = np.asarray(values, np.float64)
    descending = np.sort(found)[::-1]
    excess = np.cumsum(descending) - 1.0
    positive = np.flatnonzero(descending * np.arange(1, found.size + 1) > excess)
    if not positive.size:
        raise ValueError("values: found no finite entry, expected [words] with at least one word")
    threshold = excess[positive[-1]] / (positive[-1] + 1)
    return np.asarray(np.maximum(found - threshold, 0.0))


def _shares(weights: ArrayLike, clients: int) -> Array:
    found = np.asarray(weights, np.float64)
    if found.shape != (clients,):
        raise ValueError(f"weights: found shape {found.shape}, expected [{clients}], one for each client")
    if not np.isfinite(found).all() or (found.size and found.min() < 0) or not found.sum() > 0:
        raise ValueError("weights: expected finite, non-negative pseudo-counts, at least one above 0")
    return np.asarray(found / found.sum())
