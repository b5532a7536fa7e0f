"""Exact draws of integer noise: integers and the system's generator only, no floats, no seed.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), algorithms 1 to 3, for whole vectors
at once: what is not accepted is drawn again. Arrays are int64 [n]; fractions are compared as integers, and where those
would not fit into 63 bits the same algorithms run over Python's.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError

__all__ = ["discrete_gaussian", "discrete_gaussians", "discrete_laplace", "discrete_laplaces"]

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

LARGEST = 1 << 62
REACH = 40
"""A Gaussian draw begins as a Laplace draw; one beyond so many scales, of which there is one in e^40, is drawn again
with Python's integers."""


def discrete_laplaces(size: int, scale: int) -> Integers:
    """``size`` independent draws with P(x) proportional to exp(-|x| / scale). PrivacyError: a scale below 1."""
    _checked(scale, "scale", "unit")
    draws = np.zeros(size, np.int64)
    if scale > LARGEST >> 12:
        draws[:] = [discrete_laplace(scale) for _ in range(size)]
        return draws
    todo = np.arange(size)
    while todo.size:
        rest = _below(scale, todo.size)
        accepted = _bernoulli_exps(rest, scale)
        wholes, going = np.zeros(todo.size, np.int64), np.flatnonzero(accepted)
        while going.size:
            going = going[_inverse_es(going.size)]
            wholes[going] += 1
        magnitude = rest + scale * wholes
        negative = _below(2, todo.size) == 1
        accepted &= ~(negative & (magnitude == 0))
        draws[todo[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
        todo = todo[~accepted]
    return draws


def discrete_gaussians(size: int, variance: int) -> Integers:
    """``size`` independent draws with P(x) proportional to exp(-x^2 / (2 variance)) over the integers.

    Raises PrivacyError for a variance below 1.
    """
    _checked(variance, "variance", "squared unit")
    draws = np.zeros(size, np.int64)
    scale = math.isqrt(variance) + 1
    denominator = 2 * variance * scale * scale
    if (REACH * scale * scale) ** 2 > LARGEST:
        draws[:] = [discrete_gaussian(variance) for _ in range(size)]
        return draws
    todo = np.arange(size)
    while todo.size:
        proposed = discrete_laplaces(todo.size, scale)
        near = np.abs(proposed) <= REACH * scale
        losses = (np.where(near, np.abs(proposed), 0) * scale - variance) ** 2
        accepted = near & _bernoulli_exps(losses, denominator)
        for far in np.flatnonzero(~near):
            accepted[far] = _gaussian_accepts(int(proposed[far]), variance, scale)
        draws[todo[accepted]] = proposed[accepted]
        todo = todo[~accepted]
    return draws


def discrete_laplace(scale: int) -> int:
    """One draw of :func:`discrete_laplaces`, of any scale."""
    _checked(scale, "scale", "unit")
    while True:
        rest = secrets.randbelow(scale)
        if not _bernoulli_exp(rest, scale):
            continue
        wholes = 0
        while _bernoulli_exp(1, 1):
            wholes += 1
        magnitude = rest + scale * wholes
        negative = secrets.randbelow(2)
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: int) -> int:
    """One draw of :func:`discrete_gaussians`, of any variance."""
    _checked(variance, "variance", "squared unit")
    scale = math.isqrt(variance) + 1
    while True:
        draw = discrete_laplace(scale)
        if _gaussian_accepts(draw, variance, scale):
            return draw


def _gaussian_accepts(draw: int, variance: int, scale: int) -> bool:
    return _bernoulli_exp((abs(draw) * scale - variance) ** 2, 2 * variance * scale * scale)


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), for a fraction of 0 or more."""
    while numerator > denominator:
        if not _bernoulli_exp(1, 1):
            return False
        numerator -= denominator
    step = 1
    while secrets.randbelow(denominator * step) < numerator:
        step += 1
    return step % 2 == 1


def _bernoulli_exps(numerators: Integers, denominator: int) -> Flags:
    """True with probability exp(-numerator / denominator), each by itself; numerators 0 or more.

    A chance of numerator / (denominator * step) is taken as two: numerator / denominator, and one in ``step``.
    """
    wholes, rests = np.divmod(numerators, denominator)
    alive = np.ones(numerators.size, np.bool_)
    going = np.flatnonzero(wholes > 0)
    while going.size:  # exp(-1), as often as the fraction holds 1
        alive[going] = _inverse_es(going.size)
        wholes[going] -= 1
        going = going[alive[going] & (wholes[going] > 0)]
    return alive & _alternating(rests, denominator)


def _inverse_es(size: int) -> Flags:
    """True with probability exp(-1)."""
    return _alternating(np.ones(size, np.int64), 1)


def _alternating(numerators: Integers, denominator: int) -> Flags:
    """True with probability exp(-numerator / denominator), for fractions in [0, 1]: how often a coin of ever smaller
    chance falls on one side decides it, by odd or even."""
    steps, going, step = np.ones(numerators.size, np.int64), np.arange(numerators.size), 1
    while going.size:
        falls = (_below(denominator, going.size) < numerators[going]) & (_below(step, going.size) == 0)
        going = going[falls]
        steps[going] += 1
        step += 1
    return steps % 2 == 1


def _below(limit: int, size: int) -> Integers:
    """Uniform integers from 0 to limit - 1: random bits, drawn again where they are not below."""
    drawn = np.zeros(size, np.int64)
    bits = (limit - 1).bit_length()
    todo = np.arange(size if bits else 0)
    while todo.size:
        words = np.frombuffer(secrets.token_bytes(8 * todo.size), "<u8") >> np.uint64(64 - bits)
        found = words.astype(np.int64)
        fits = found < limit
        drawn[todo[fits]] = found[fits]
        todo = todo[~fits]
    return drawn


def _checked(value: int, name: str, unit: str) -> None:
    if value < 1:
        raise PrivacyError(f"{name}: found {value}, expected at least 1 {unit}")
