"""A delta as integers that secure aggregation can add up, with a share of exact noise: the distributed discrete
Gaussian mechanism (Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation, 2021, algorithms 1 and 2).

C: clipping bound; k: the plan's ``bits``; L = 2^(k-1) - 1: whole steps that make C; d: values; n: devices of a sum, of
which at least t (``minimum_survivors``) are left; sigma: deviation of one device's noise, in steps; b: bits of a masked
word; seed: the round's id, which makes its rotation.

    device  clip to C -> one vector -> rotate -> times L / C -> round at random -> add N_Z(0, sigma^2) -> mask mod 2^b
    server  sum of a group, mod 2^b -> times C / L -> rotate back -> sum of the deltas

Rounding at random is right on the average, and can make a vector longer. It is drawn again until its squared norm, in
integers, is at most that of theorem 1 with gamma = C / L, for beta = e^(-1/2) and the largest d:

    D^2 = min((L + sqrt(d))^2, L^2 + d / 4 + sqrt(2 log(1 / beta)) (L + sqrt(d) / 2))

A draw is within it with a chance of 1 - beta at least. So D is what one device can move the sum by, whatever it learned
and however floats round; it is what accounting charges."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.clipping import clip
from device_sdk.privacy.contributions import SMALLEST_SHARE
from device_sdk.privacy.rotation import block_size, rotate, unrotate
from device_sdk.privacy.samplers import discrete_gaussians

if TYPE_CHECKING:  # learning starts without pydantic
    from device_sdk.wire.messages import DeltaPlan

MOST_VALUES = 1 << 20
"""The largest d."""
WRAPS = 2.0**-40
"""The chance, at most, that a sum leaves the b-bit numbers anywhere and wraps around."""
_ATTEMPTS = 64
"""Of rounding, each of which is too long with a chance of at most e^(-1/2)."""

_LARGEST_RATIO = 1e6
_BOUNDS = 1e-18, 1e18
"""Of a clipping bound, so that float32 holds what is clipped to it."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Arrays = Mapping[str, NDArray[np.float32]]


def clip_steps(plan: DeltaPlan) -> int:
    """L: steps in the clipping bound."""
    return (1 << (plan.bits - 1)) - 1


def squared_sensitivity(plan: DeltaPlan) -> int:
    """D^2, rounded down to what integers can reach: of one device's vector, in squared steps."""
    most, root = clip_steps(plan), math.isqrt(MOST_VALUES)
    return min((most + root) ** 2, most**2 + MOST_VALUES // 4 + most + root // 2)


def step_variance(plan: DeltaPlan) -> int:
    """sigma^2 of one device's share of the noise, in squared steps, rounded up; 0 where the plan has none. Raises
    PrivacyError for a share too small for a sum of them to be as accounted."""
    _check_bound(plan)
    if not plan.noise_stddev <= _LARGEST_RATIO * plan.clip_norm:
        most = f"{_LARGEST_RATIO:g} clip norms at most"
        raise PrivacyError(f"noise_stddev: found {plan.noise_stddev:g}, expected {most}")
    variance = math.ceil((plan.noise_stddev / plan.clip_norm * clip_steps(plan)) ** 2)
    if 0 < variance < SMALLEST_SHARE:
        found = f"{plan.noise_stddev:g}, a share of variance {variance} squared steps"
        raise PrivacyError(f"noise_stddev: found {found}; expected at least {SMALLEST_SHARE}: more noise, or more bits")
    return variance


def squared_ratio(plan: DeltaPlan) -> float:
    """(L2 sensitivity / deviation)^2 of the smallest sum that may be unmasked; inf without noise. Theorem 1: with

        tau = 10 sum_(k = 1 .. t - 1) exp(-2 pi^2 sigma^2 k / (k + 1)) <= 10 (t - 1) exp(-pi^2 sigma^2),
        epsilon = min(sqrt(D^2 / (t sigma^2) + tau d / 2), D / (sqrt(t) sigma) + tau sqrt(d)),

    a sum is epsilon^2 / 2 concentrated private, as a Gaussian mechanism of that ratio is; epsilon^2 is returned. tau is
    how far a sum of t discrete Gaussians is from one; at a variance of 100 or more it is below any float."""
    variance, survivors = step_variance(plan), plan.minimum_survivors
    if not variance:
        return math.inf
    tau = 10 * (survivors - 1) * math.exp(-(math.pi**2) * variance)
    plain = squared_sensitivity(plan) / (survivors * variance)
    return min(plain + tau * MOST_VALUES / 2, (math.sqrt(plain) + tau * math.sqrt(MOST_VALUES)) ** 2)


def word_bits(plan: DeltaPlan, devices: int, values: int) -> int:
    """b: so many bits that a sum over n devices wraps anywhere with a chance of at most :data:`WRAPS`, for whatever
    deltas that do not depend on the rotation. A value of the sum, of deltas as long as they may be and all alike, is
    sub-Gaussian with variance proxy (n L)^2 / m over the rotation's signs, and its noise with n sigma^2; rounding moves
    it by less than n. Nor are the deltas' values ever more than n (L + 1) together."""
    noise = devices * step_variance(plan)
    tail = math.sqrt(2 * math.log(2 * values / WRAPS))
    rotated = devices + tail * math.sqrt((devices * clip_steps(plan)) ** 2 / block_size(values) + noise)
    farthest = min(rotated, devices * (clip_steps(plan) + 1) + tail * math.sqrt(noise))
    return max(8, math.ceil(farthest).bit_length() + 1)


def largest_sum(plan: DeltaPlan, devices: int, values: int) -> float:
    """The L2 norm, in steps, that a sum of n devices' vectors passes with a chance of :data:`WRAPS` at most: n D of
    what they learned, and of their noise, whose d values are sub-Gaussian with variance proxy n sigma^2, that times
    sqrt(d) + sqrt(2 log(1 / chance)) (Hsu, Kakade and Zhang, 2012, theorem 2.1). Who makes it longer does not clip."""
    noise = math.sqrt(devices * step_variance(plan)) * (math.sqrt(values) + math.sqrt(-2 * math.log(WRAPS)))
    return devices * math.sqrt(squared_sensitivity(plan)) + noise


def quantised(delta: Arrays, plan: DeltaPlan, seed: str) -> Integers:
    """int64 [d]: what one device adds to the sum, noise and all; the arrays one after the other, by name. Raises
    PrivacyError: too many values, or an impossible bound or noise."""
    within, _ = clip(delta, plan.clip_norm, plan.clipping)
    return noised(rounded(flat(within)[None], plan, seed), plan)[0]


def rounded(vectors: Floats, plan: DeltaPlan, seed: str) -> Integers:
    """int64 [n, d] of vectors [n, d] of norm C at most, rotated, in steps; their squared norms are at most D^2."""
    _check_bound(plan)
    if not 0 < vectors.shape[-1] <= MOST_VALUES:
        raise PrivacyError(f"delta: found {vectors.shape[-1]} values, expected 1 to {MOST_VALUES}; take a smaller part")
    steps = rotate(vectors, seed) * (clip_steps(plan) / plan.clip_norm)
    norms = np.sqrt(np.square(steps).sum(axis=1, keepdims=True))  # what float32 left beyond C
    steps *= np.minimum(1.0, clip_steps(plan) / np.maximum(norms, 1.0))
    lower, most = np.floor(steps), squared_sensitivity(plan)
    result = np.trunc(steps).astype(np.int64)  # never too long; stays where no draw is short enough
    todo = np.arange(len(steps))
    for _ in range(_ATTEMPTS):
        chances = np.frombuffer(os.urandom(4 * steps[todo].size), np.uint32).reshape(len(todo), -1) * 2.0**-32
        drawn = (lower[todo] + (chances < steps[todo] - lower[todo])).astype(np.int64)
        fits = np.square(drawn).sum(axis=1) <= most
        result[todo[fits]] = drawn[fits]
        todo = todo[~fits]
        if not todo.size:
            break
    return result


def _check_bound(plan: DeltaPlan) -> None:
    if not _BOUNDS[0] <= plan.clip_norm <= _BOUNDS[1]:
        raise PrivacyError(f"clip_norm: found {plan.clip_norm:g}, expected {_BOUNDS[0]:g} to {_BOUNDS[1]:g}")


def noised(vectors: Integers, plan: DeltaPlan) -> Integers:
    """Integers of any shape, each with an independent draw of one device's share of the noise."""
    if not (variance := step_variance(plan)):
        return vectors
    return vectors + discrete_gaussians(vectors.size, variance).reshape(vectors.shape)


def summed(total: Integers, plan: DeltaPlan, seed: str) -> Floats:
    """float64 [d], in the unit of the deltas, of a sum of :func:`quantised` ones."""
    return unrotate(np.asarray(total * (plan.clip_norm / clip_steps(plan)), np.float64), seed)


def layout_digest(model_version: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """SHA-256, hexadecimal, of which value of which model's delta is where in a vector."""
    layout = [model_version, [[name, *shapes[name]] for name in sorted(shapes)]]
    return sha256(json.dumps(layout, separators=(",", ":")).encode()).hexdigest()


def flat(arrays: Arrays) -> Floats:
    """float64 [d]: the arrays one after the other, by name."""
    return np.concatenate([np.asarray(arrays[name], np.float64).reshape(-1) for name in sorted(arrays)])


def parted(vector: Floats, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """float32 arrays of these shapes, of what :func:`flat` made of such."""
    ends = np.cumsum([math.prod(shapes[name]) for name in sorted(shapes)])
    pieces = zip(sorted(shapes), np.split(vector, ends[:-1]), strict=True)
    return {name: piece.reshape(shapes[name]).astype(np.float32) for name, piece in pieces}
