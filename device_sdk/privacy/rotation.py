"""A random rotation that both sides know: after it no value of a vector stands out, whatever the vector was.

x: [d]; m: the largest power of two up to d; H: the Walsh-Hadamard matrix over sqrt(m), which is orthogonal and its own
inverse; S: a diagonal of random signs. Where d is a power of two the rotation is x -> H S x (Kairouz, Liu and Steinke,
2021, section 4). Else H S is applied to the first m values, and then, with signs of its own, to the last m of what came
out: orthogonal still, and no value more is sent, where padding would send up to twice as many.

Every value that comes out is a sum of the m that went in, with random signs and weights 1 / sqrt(m): around zero, and
beyond t with a chance of at most 2 exp(-t^2 m / 2 |x|^2) (Hoeffding)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RADIX = 5
"""Binary logarithm of the largest matrix that is multiplied by: 32 values at a time, by BLAS."""


def rotate(vectors: Floats, seed: str) -> Floats:
    """Vectors [..., d], each rotated; norms stay. seed: public, the same for all who add theirs up."""
    result = np.array(vectors, np.float64)
    for block, signs in _blocks(result.shape[-1], seed):
        result[..., block] = _hadamard(result[..., block] * signs)
    return result


def unrotate(vectors: Floats, seed: str) -> Floats:
    """What :func:`rotate` makes these of, but for float64's rounding."""
    result = np.array(vectors, np.float64)
    for block, signs in reversed(list(_blocks(result.shape[-1], seed))):
        result[..., block] = _hadamard(result[..., block]) * signs
    return result


def block_size(values: int) -> int:
    """m: how many values each one that comes out is a sum of, for d = ``values``."""
    return 1 << (values.bit_length() - 1)


def _blocks(values: int, seed: str) -> Iterator[tuple[slice, Floats]]:
    """(which values, their signs) of every step of the rotation."""
    size = block_size(values)
    for number, start in enumerate(sorted({0, values - size})):
        bits = shake_256(f"idiolect rotation {number} {seed}".encode()).digest(-(-size // 8))
        signs = np.unpackbits(np.frombuffer(bits, np.uint8), count=size)
        yield slice(start, start + size), np.asarray(1.0 - 2.0 * signs, np.float64)


def _hadamard(vectors: Floats) -> Floats:
    """H x for vectors [..., m]. The matrix is a Kronecker product of small ones: each takes the lowest bits of the
    values' numbers, and moves them to the top, until all are back where they were."""
    size = vectors.shape[-1]
    result, left = vectors.reshape(-1, size), size.bit_length() - 1
    while left:
        step = min(_RADIX, left)
        result = result.reshape(len(result), size >> step, 1 << step) @ _small(step)
        result = result.swapaxes(1, 2).reshape(len(result), size)
        left -= step
    return result.reshape(vectors.shape)


@lru_cache(maxsize=_RADIX)
def _small(exponent: int) -> Floats:
    matrix = np.ones((1, 1))
    for _ in range(exponent):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / math.sqrt(1 << exponent), np.float64)
