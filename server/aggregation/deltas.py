"""Weighted averaging of model deltas as a stream: the server holds one sum, whatever the number of devices.

``add`` folds one delta in, ``merge`` joins two partial sums. Deltas are added in report-id order, so a resumed round
repeats the same float32 result bit for bit. Up to ``UPDATES`` deltas wait and are then folded together: block by block,
every ``RUN`` of them are summed, then every two of those sums, while the block is in the processor's cache. So each
delta is read from memory once, the total once for ``UPDATES`` of them, and a value is rounded fewer times.

How much each device's delta counts: equations 8 to 10 of Gao et al. 2022. Those weights depend on what devices report
of their data, so they are for rounds without noise: under noise, weights are constant and the denominator is fixed.

Noise: a sum in float32 is rounded at every addition, by what the others sent: then one device more or less can move it
by more than the bound of a delta, which is all that noise is made for. So where the server adds Gaussian noise every
value is cut to a whole number of steps of a grid, and a delta beyond the bound is scaled down to it; both only make
values smaller. Integers add up in any order to the same, and what one device adds is its own delta alone.

C: clipping bound; z: noise multiplier. Steps are of z C / 2^20 and no delta is longer than C, so the ratio of what one
of them moves and of the noise is 1 / z to the last bit, and no low-order bit of a float tells anything. A draw at such
a scale is the sum of two smaller ones, k X + Y with k = 2^9, which are exact discrete Gaussians. Y is wider than k
times the integers' smoothing parameter at 2^-128 (s = 4096 sqrt(2 pi) > 5.4 k), so the sum's probabilities are those of
one discrete Gaussian to a factor of 1 + 2^-120 (Micciancio and Peikert, Hardness of SIS and LWE with Small Parameters,
2013, theorem 3.3): nothing beside any delta that is stated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import saxpy

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes, discrete_gaussians
from server.plans.round import SMALLEST_MULTIPLIER, RoundSettings

Weights = Mapping[str, NDArray[np.float32]]
Steps = Mapping[str, NDArray[np.int64]]
Float = NDArray[np.float32]

BLOCK = 1 << 17
"""Values per block: sums of them stay in the second level of cache."""
RUN = 4
UPDATES = 2 * RUN
"""Deltas that are folded together: what a sum holds in memory beside itself, at most."""


@dataclass(frozen=True, slots=True)
class DeltaSum:
    """sum: per parameter, float32, sum of weight * delta of what is folded, or int64, in steps of a grid, of deltas of
    weight 1; weight: sum of all weights; reports: how many were added; waiting: the last of them with their weights,
    not folded yet."""

    sum: Mapping[str, NDArray[Any]]
    weight: float
    reports: int
    waiting: tuple[tuple[Weights, float], ...] = ()


def init(shapes: Mapping[str, tuple[int, ...]], dtype: type[np.float32 | np.int64] = np.float32) -> DeltaSum:
    """The sum of no deltas."""
    return DeltaSum({name: np.zeros(shape, dtype) for name, shape in shapes.items()}, 0.0, 0)


def add(state: DeltaSum, delta: Weights, weight: float) -> DeltaSum:
    """``state`` with one more delta of the given weight. ``state`` is consumed: its arrays become the result's, so that
    one model size of memory is enough. The delta is kept until it is folded and must not change. The caller has
    validated it (:func:`server.aggregation.validation.validate_delta`)."""
    waiting = (*state.waiting, (delta, weight))
    state = DeltaSum(state.sum, state.weight + weight, state.reports + 1, waiting)
    return fold(state) if len(waiting) == UPDATES else state


def add_steps(state: DeltaSum, delta: Steps) -> DeltaSum:
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
    that two model sizes of memory are enough."""
    left, right = fold(left), fold(right)
    for name, total in left.sum.items():
        np.add(total, right.sum[name], out=total)
    return DeltaSum(left.sum, left.weight + right.weight, left.reports + right.reports)


def finish(state: DeltaSum, denominator: float | None = None) -> dict[str, NDArray[np.float32]]:
    """Mean delta: the sum over its total weight, or over a fixed denominator. ``state`` is consumed by folding. Under
    differential privacy the denominator must not depend on who reported, so it is given. An empty sum has a mean of
    zero."""
    state = fold(state)
    divisor = state.weight if denominator is None else denominator
    factor = np.float32(1.0 / divisor if divisor else 0.0)
    return {name: total * factor for name, total in state.sum.items()}


def weighted_sum(total: Float, values: Sequence[Float], weights: Sequence[float]) -> None:
    """``total += sum_i weights_i * values_i`` in place, pairwise, block by block, without temporaries of their size.
    total: C-contiguous float32 of any shape; values: arrays of that shape."""
    flat = total.reshape(-1)
    sources = [np.ascontiguousarray(each, np.float32).reshape(-1) for each in values]
    scratch = np.empty(-(-len(sources) // RUN) * min(BLOCK, flat.size), np.float32)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        np.add(part, _pairwise([source[start : start + BLOCK] for source in sources], weights, scratch), out=part)


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


def report_weights(settings: RoundSettings, reports: Sequence[Any]) -> list[float]:
    """A weight for each stored report, in units of one device: of mean 1 where they are shares (eq. 9 and 10). A cost
    below the lowest tenth's counts as that: what devices say of themselves nobody can check, and one that says 0 where
    others say 20 nats would be the whole mean."""
    match settings.weighting:
        case "utterances":  # eq. 8, whose denominator is the sum of the weights
            return [float(min(report.utterances, settings.weight_limit)) for report in reports]
        case "uniform":
            return [1.0] * len(reports)
        case "loss":
            costs = [report.loss for report in reports]
        case "word_errors":
            costs = [report.word_error for report in reports]
    shares = cost_shares(np.maximum(costs, np.quantile(costs, 0.1, method="higher"))) if costs else np.zeros(0)
    return [float(share) for share in shares * len(reports)]


def cost_shares(costs: Sequence[float]) -> NDArray[np.float64]:
    """alpha_k = exp(-L_k) / sum exp(-L) -> [K], sum 1. costs: mean training losses L, nats (eq. 9), or word errors,
    fractions: exp(1 - wer_k) / sum exp(1 - wer) is the same (eq. 10)."""
    array = np.asarray(costs, np.float64)
    scaled = np.exp(array.min(initial=np.inf) - array)  # relative to the least, so that exp does not underflow
    return np.asarray(scaled / scaled.sum())


STEPS = 1 << 20
"""Of the grid in one standard deviation, before it is made larger."""
COARSE = 1 << 9
FINE_VARIANCE = 1 << 24
COARSE_VARIANCE = (STEPS**2 - FINE_VARIANCE) // COARSE**2 + 1
"""One more than makes STEPS^2 of the two: more than float64 rounds of a step."""
DRAWN_AT_ONCE = 1 << 18
"""Values drawn at once: bounds the memory of the sampler."""


@dataclass(frozen=True, slots=True)
class Grid:
    """step: width, in the unit of a delta's values. bound: the largest L2 norm of a delta on the grid; None leaves it
    to what was accepted, where a delta holds noise of its own."""

    step: float
    bound: float | None = None


def in_steps(delta: Weights, grid: Grid) -> dict[str, NDArray[np.int64]]:
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


def _norm_at_most(delta: Weights) -> float:
    """L2 norm, or a little above. Squares of float32 are exact in float64; their sum is rounded once a value."""
    squares = sum(float(np.square(values, dtype=np.float64).sum()) for values in delta.values())
    return math.sqrt(squares) * (1 + (8 + sum(values.size for values in delta.values())) * 2.0**-53)


def noise_grid(clip_norm: float, noise_multiplier: float) -> Grid:
    """What the deltas are cut to that get this noise. Raises PrivacyError for a bound that is not a positive number or
    a multiplier below :data:`SMALLEST_MULTIPLIER`."""
    if not (0 < clip_norm < math.inf and SMALLEST_MULTIPLIER <= noise_multiplier < math.inf):
        raise PrivacyError(
            f"clip_norm, noise_multiplier: found {clip_norm!r}, {noise_multiplier!r}; expected positive numbers, the "
            f"second at least {SMALLEST_MULTIPLIER:g}"
        )
    return Grid(noise_multiplier * clip_norm / STEPS, clip_norm)


def noised_sum(
    total: Steps, clip_norm: float, noise_multiplier: float, source: RandomBytes
) -> dict[str, NDArray[np.float32]]:
    """The sum, in steps of :func:`noise_grid`, with independent noise of deviation z C on every value (at most one part
    in a million more), in the unit of the bound, rounded once. About 30 microseconds a value. source: secret bytes, the
    stream of a release's key; the same bytes make the same noise. Arrays are taken in the order of their names. Raises
    PrivacyError for a bound or a multiplier as :func:`noise_grid` does, and for a sum of 2^62 steps or more."""
    grid = noise_grid(clip_norm, noise_multiplier)
    noised: dict[str, NDArray[np.float32]] = {}
    for name in sorted(total):
        values = total[name].reshape(-1)
        if values.size and not -(1 << 62) < int(values.min()) <= int(values.max()) < 1 << 62:
            raise PrivacyError(f"{name}: found a sum far above its bound; nothing is released")
        result = np.empty(values.size, np.float32)
        for start in range(0, values.size, DRAWN_AT_ONCE):
            part = values[start : start + DRAWN_AT_ONCE].copy()
            part += COARSE * discrete_gaussians(part.size, COARSE_VARIANCE, source)
            part += discrete_gaussians(part.size, FINE_VARIANCE, source)
            result[start : start + DRAWN_AT_ONCE] = part * grid.step
        noised[name] = result.reshape(total[name].shape)
    return noised
