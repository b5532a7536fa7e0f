"""Shamir's secret sharing over GF(65537): any ``threshold`` of the shares give the secret, fewer say nothing about it.

A secret of 2 m bytes is m elements of the field, each the value at 0 of a polynomial of its own, of degree
threshold - 1; share i is the polynomials' values at i, for i = 1, 2, ... Of the shares threshold - 1 are drawn first,
uniformly; with the secret they make the polynomials, and those all other shares. Where who shares and who holds can
both draw a share, from a key that they alone have, it need not be sent.

The field is small enough that dot products of its elements fit int64 and large enough for 65,536 shares. An element
takes 17 bits, one after the other, the lowest first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError

PRIME = 65537
ELEMENT_BITS = 17
Elements = NDArray[np.int64]


def split(secret: bytes, drawn: Mapping[int, Elements], count: int) -> dict[int, bytes]:
    """The shares of ``secret`` at all points up to ``count`` that are not drawn, by point. drawn: elements of the
    shares at threshold - 1 points, one for every two bytes of the secret. ProtocolError: an odd number of bytes, or a
    point beyond 1 .. count, or so many that none is left."""
    if len(secret) % 2 or not len(drawn) < count < PRIME or not all(1 <= point <= count for point in drawn):
        found = f"found {count} shares of {len(secret)} bytes, {len(drawn)} of them drawn"
        raise ProtocolError(f"shares: {found}; expected an even number of bytes, and a share that is not drawn")
    elements = np.frombuffer(secret, "<u2").astype(np.int64)
    values = np.stack([elements, *drawn.values()])
    points = [point for point in range(1, count + 1) if point not in drawn]
    rows = interpolation(np.array(points), np.array([0, *drawn])) @ values % PRIME
    return {point: to_bytes(row) for point, row in zip(points, rows, strict=True)}


def uniform(stream: bytes) -> Elements:
    """Field elements of eight uniform bytes each: no value is likelier than another by more than 2^-47."""
    return (np.frombuffer(stream, "<u8") % PRIME).astype(np.int64)


def to_bytes(elements: Elements) -> bytes:
    """One share, of its elements."""
    bits = elements[:, None] >> np.arange(ELEMENT_BITS) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def read_share(content: bytes) -> Elements:
    """The field elements of one share. ProtocolError: not elements of the field."""
    count = 8 * len(content) // ELEMENT_BITS
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    if len(content) != -(-ELEMENT_BITS * count // 8) or bits[ELEMENT_BITS * count :].any():
        raise ProtocolError(f"share: found {len(content)} bytes, expected {ELEMENT_BITS} bits for each element")
    elements = bits[: ELEMENT_BITS * count].reshape(count, ELEMENT_BITS) @ (1 << np.arange(ELEMENT_BITS))
    if elements.max(initial=0) >= PRIME:
        raise ProtocolError(f"share: found the element {elements.max()}, expected less than {PRIME}")
    return elements


def powers(points: Elements, degrees: int) -> Elements:
    """point^degree modulo the prime, from degree 0: int64 [points, degrees]."""
    columns = [np.ones(len(points), np.int64)]
    for _ in range(degrees - 1):
        columns.append(columns[-1] * points % PRIME)
    return np.stack(columns, axis=1)


def interpolation(targets: Elements, points: Elements, prime: int = PRIME) -> Elements:
    """Lagrange's basis polynomials through ``points``, at targets that are none of them: int64 [targets, points]."""
    apart = (targets[:, None] - points) % prime
    scale = inverse(products(points[:, None] - points, prime), prime)
    return _product(apart, prime)[:, None] * (inverse(apart, prime) * scale % prime) % prime


def products(differences: Elements, prime: int = PRIME) -> Elements:
    """Products of the rows of a square, but for its diagonal."""
    return _product(differences % prime + np.eye(len(differences), dtype=np.int64), prime)


def inverse(elements: Elements, prime: int = PRIME) -> Elements:
    """By Fermat: x^(prime - 2)."""
    found, square = np.ones_like(elements), elements % prime
    for bit in range((prime - 2).bit_length()):
        if (prime - 2) >> bit & 1:
            found = found * square % prime
        square = square * square % prime
    return found


def _product(rows: Elements, prime: int) -> Elements:
    return reduce(lambda left, right: left * right % prime, rows.T, np.ones(len(rows), np.int64))
