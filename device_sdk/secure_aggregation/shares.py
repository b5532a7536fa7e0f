"""Shamir's secret sharing over GF(65537): any ``threshold`` of the shares give the secret, fewer say nothing about it.

A secret of 2 m bytes is m elements of the field, each the constant term of a polynomial of its own, of degree
threshold - 1 with otherwise uniform coefficients; share i is the polynomials' values at i, for i = 1, 2, ... The field
is small enough that dot products of its elements fit int64 and large enough for 65,536 shares."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError

PRIME = 65537
Elements = NDArray[np.int64]


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """``count`` shares of ``secret``, which has an even number of bytes; share i of the answer is that of point i + 1.
    ProtocolError: 1 <= threshold <= count < 65537 does not hold, or the number of bytes is odd."""
    if not 1 <= threshold <= count < PRIME or len(secret) % 2:
        expected = f"expected 1 <= threshold <= count < {PRIME} and an even number of bytes"
        raise ProtocolError(f"shares: found {count} of {len(secret)} bytes with threshold {threshold}, {expected}")
    elements = np.frombuffer(secret, "<u2").astype(np.int64)
    coefficients = np.concatenate([elements[None], _uniform((threshold - 1, elements.size))])
    return [row.astype("<u4").tobytes() for row in evaluate(coefficients, count)]


def read_share(content: bytes) -> Elements:
    """The field elements of one share. ProtocolError: not elements of the field."""
    if len(content) % 4:
        raise ProtocolError(f"share: found {len(content)} bytes, expected four for each element")
    elements = np.frombuffer(content, "<u4").astype(np.int64)
    if elements.max(initial=0) >= PRIME:
        raise ProtocolError(f"share: found the element {elements.max()}, expected less than {PRIME}")
    return elements


def evaluate(coefficients: Elements, count: int, prime: int = PRIME) -> Elements:
    """Values of polynomials at 1 .. count, int64 [count, secrets]. coefficients: [threshold, secrets]."""
    return _powers_to(count, len(coefficients), prime) @ coefficients % prime


def _uniform(shape: tuple[int, int], prime: int = PRIME) -> Elements:
    """Uniform field elements from the system's generator; draws beyond the last multiple of the prime are dropped."""
    size, limit = shape[0] * shape[1], (1 << 32) // prime * prime
    found = np.empty(0, np.int64)
    while found.size < size:
        drawn = np.frombuffer(os.urandom(4 * (size - found.size)), "<u4").astype(np.int64)
        found = np.concatenate([found, drawn[drawn < limit] % prime])
    return found.reshape(shape)


@lru_cache(maxsize=64)
def _powers_to(count: int, degrees: int, prime: int) -> Elements:
    return powers(np.arange(1, count + 1, dtype=np.int64), degrees, prime)


def powers(points: Elements, degrees: int, prime: int = PRIME) -> Elements:
    """point^degree modulo the prime, from degree 0: int64 [points, degrees]."""
    columns = [np.ones(len(points), np.int64)]
    for _ in range(degrees - 1):
        columns.append(columns[-1] * points % prime)
    return np.stack(columns, axis=1)
