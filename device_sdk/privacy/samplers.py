"""Exact draws of integer noise: integers and random bytes only, no floats, no seed.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), algorithms 1 to 3, for whole vectors
at once: what is not accepted is drawn again. Arrays are int64 [n]; fractions are compared as integers, and where those
would not fit into 63 bits the same algorithms run over Python's.

Every draw takes its bits from ``source``, the system's generator unless another is given: the same bytes make the same
draws, so a secret key and a stream cipher repeat a release to the last bit."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
RandomBytes = Callable[[int], bytes]
"""How many -> so many secret uniform bytes."""

LARGEST = 1 << 62
REACH = 40
"""A Gaussian draw begins as a Laplace draw; one beyond so many scales, one in e^40, is drawn by Python's integers."""
WIDEST = LARGEST >> 7
"""The largest scale of a vector: a draw beyond 63 bits, of which there is one in e^128, would end it."""
_WORDS = tuple(np.dtype(f"<u{size}") for size in (1, 2, 4, 8))
"""Random bytes are most of a draw's time: no more are asked for than hold the bits."""


def discrete_laplaces(size: int, scale: int | Fraction, source: RandomBytes = secrets.token_bytes) -> Integers:
    """``size`` draws with P(x) proportional to exp(-|x| / scale). Raises PrivacyError for a scale not in (0, 2^55]."""
    scale = _scale(scale)
    _check_fits(scale)
    draws = np.zeros(size, np.int64)
    whole, part = scale.numerator, scale.denominator
    if max(whole, part) > LARGEST >> 12:
        draws[:] = [discrete_laplace(scale, source) for _ in range(size)]
        return draws
    todo = np.arange(size)
    while todo.size:
        rest = _below(whole, todo.size, source)
        accepted = _bernoulli_exps(rest, whole, source)
        times, going = np.zeros(todo.size, np.int64), np.flatnonzero(accepted)
        while going.size:
            going = going[_inverse_es(going.size, source)]
            times[going] += 1
        magnitude = (rest + whole * times) // part
        negative = _below(2, todo.size, source) == 1
        accepted &= ~(negative & (magnitude == 0))
        draws[todo[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
        todo = todo[~accepted]
    return draws


def discrete_gaussians(size: int, variance: int, source: RandomBytes = secrets.token_bytes) -> Integers:
    """``size`` independent draws with P(x) proportional to exp(-x^2 / (2 variance)) over the integers. Raises
    PrivacyError for a variance below 1, or above 2^110."""
    _check_variance(variance)
    draws = np.zeros(size, np.int64)
    scale = math.isqrt(variance) + 1
    _check_fits(scale)
    denominator = 2 * variance * scale * scale
    if (REACH * scale * scale) ** 2 > LARGEST:
        draws[:] = [discrete_gaussian(variance, source) for _ in range(size)]
        return draws
    todo = np.arange(size)
    while todo.size:
        proposed = discrete_laplaces(todo.size, scale, source)
        near = np.abs(proposed) <= REACH * scale
        losses = (np.where(near, np.abs(proposed), 0) * scale - variance) ** 2
        accepted = near & _bernoulli_exps(losses, denominator, source)
        for far in np.flatnonzero(~near):
            accepted[far] = _gaussian_accepts(int(proposed[far]), variance, scale, source)
        draws[todo[accepted]] = proposed[accepted]
        todo = todo[~accepted]
    return draws


def discrete_laplace(scale: int | Fraction, source: RandomBytes = secrets.token_bytes) -> int:
    """One draw of :func:`discrete_laplaces`, of any scale."""
    scale = _scale(scale)
    whole, part = scale.numerator, scale.denominator
    while True:
        rest = _one_below(whole, source)
        if not _bernoulli_exp(rest, whole, source):
            continue
        times = 0
        while _bernoulli_exp(1, 1, source):
            times += 1
        magnitude = (rest + whole * times) // part
        negative = _one_below(2, source)
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: int, source: RandomBytes = secrets.token_bytes) -> int:
    """One draw of :func:`discrete_gaussians`, of any variance."""
    _check_variance(variance)
    scale = math.isqrt(variance) + 1
    while True:
        draw = discrete_laplace(scale, source)
        if _gaussian_accepts(draw, variance, scale, source):
            return draw


def _gaussian_accepts(draw: int, variance: int, scale: int, source: RandomBytes) -> bool:
    return _bernoulli_exp((abs(draw) * scale - variance) ** 2, 2 * variance * scale * scale, source)


def _bernoulli_exp(numerator: int, denominator: int, source: RandomBytes) -> bool:
    """True with probability exp(-numerator / denominator), for a fraction of 0 or more."""
    while numerator > denominator:
        if not _bernoulli_exp(1, 1, source):
            return False
        numerator -= denominator
    step = 1
    while _one_below(denominator * step, source) < numerator:
        step += 1
    return step % 2 == 1


def _bernoulli_exps(numerators: Integers, denominator: int, source: RandomBytes) -> Flags:
    """True with probability exp(-numerator / denominator), each by itself; numerators 0 or more. A chance of numerator
    / (denominator * step) is taken as two: numerator / denominator, and one in ``step``."""
    wholes, rests = np.divmod(numerators, denominator)
    alive = np.ones(numerators.size, np.bool_)
    going = np.flatnonzero(wholes > 0)
    while going.size:  # exp(-1), as often as the fraction holds 1
        alive[going] = _inverse_es(going.size, source)
        wholes[going] -= 1
        going = going[alive[going] & (wholes[going] > 0)]
    return alive & _alternating(rests, denominator, source)


def _inverse_es(size: int, source: RandomBytes) -> Flags:
    """True with probability exp(-1)."""
    return _alternating(np.ones(size, np.int64), 1, source)


def _alternating(numerators: Integers, denominator: int, source: RandomBytes) -> Flags:
    """True with probability exp(-numerator / denominator), for fractions in [0, 1]: how often a coin of ever smaller
    chance falls on one side decides it, by odd or even."""
    steps, going, step = np.ones(numerators.size, np.int64), np.arange(numerators.size), 1
    while going.size:
        small = _below(denominator, going.size, source) < numerators[going]
        falls = small & (_below(step, going.size, source) == 0)
        going = going[falls]
        steps[going] += 1
        step += 1
    return steps % 2 == 1


def _below(limit: int, size: int, source: RandomBytes) -> Integers:
    """Uniform integers from 0 to limit - 1: random bits, drawn again where they are not below."""
    drawn = np.zeros(size, np.int64)
    bits = (limit - 1).bit_length()
    word = next(each for each in _WORDS if 8 * each.itemsize >= bits)
    todo = np.arange(size if bits else 0)
    while todo.size:
        words = np.frombuffer(source(word.itemsize * todo.size), word)
        found = (words >> word.type(8 * word.itemsize - bits)).astype(np.int64)
        fits = found < limit
        drawn[todo[fits]] = found[fits]
        todo = todo[~fits]
    return drawn


def _one_below(limit: int, source: RandomBytes) -> int:
    """One uniform integer from 0 to limit - 1, of any size."""
    bits = (limit - 1).bit_length()
    size = -(-bits // 8)
    while bits:
        found = int.from_bytes(source(size), "little") >> (8 * size - bits)
        if found < limit:
            return found
    return 0


def _scale(value: int | Fraction) -> Fraction:
    if value <= 0:
        raise PrivacyError(f"scale: found {value}, expected more than 0 units")
    return Fraction(value)


def _check_fits(scale: int | Fraction) -> None:
    if scale > WIDEST:
        found = f"{float(scale):.3g} units"
        raise PrivacyError(f"noise: found a scale of {found}, expected at most 2^55, whose draws are int64")


def _check_variance(value: int) -> None:
    if value < 1:
        raise PrivacyError(f"variance: found {value}, expected at least 1 squared unit")
