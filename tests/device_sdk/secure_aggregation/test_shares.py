"""Shamir's sharing: enough shares give the secret, fewer are independent of it."""

import itertools
import math
import os
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation.shares import PRIME, interpolation, inverse, read_share, split, to_bytes, uniform
from device_sdk.wire.secure_aggregation import NO_SHARE, SEED_BYTES, SHARE_BYTES


def dealt(secret: bytes, count: int, threshold: int, first: int = 1) -> dict[int, bytes]:
    """All shares of a secret, by point. first: the first of the points whose shares are drawn, one after the other."""
    points = [(first - 1 + step) % count + 1 for step in range(threshold - 1)]
    drawn = {point: uniform(os.urandom(4 * len(secret))) for point in points}
    return {point: to_bytes(share) for point, share in drawn.items()} | split(secret, drawn, count)


def at_zero(points: tuple[int, ...], values: list[int], prime: int = PRIME) -> int:
    """The value at 0 of the polynomial through these points, by Lagrange's formula."""
    total = 0
    for point, value in zip(points, values, strict=True):
        factors = [(other, other - point) for other in points if other != point]
        numerator, denominator = math.prod(each for each, _ in factors), math.prod(each for _, each in factors)
        total += value * numerator * pow(denominator, -1, prime)
    return total % prime


@st.composite
def _sharings(draw: st.DrawFn) -> tuple[bytes, int, int, int, list[int]]:
    count = draw(st.integers(1, 60))
    threshold = draw(st.integers(1, count))
    secret = draw(st.binary(min_size=1, max_size=16)) * 2
    points = draw(st.permutations(range(1, count + 1)))[:threshold]
    return secret, count, threshold, draw(st.integers(1, count)), points


@given(_sharings())
def test_any_threshold_of_the_shares_gives_the_secret(case: tuple[bytes, int, int, int, list[int]]) -> None:
    secret, count, threshold, first, points = case
    shares = dealt(secret, count, threshold, first)
    assert sorted(shares) == [*range(1, count + 1)]
    rows = [read_share(shares[point]).tolist() for point in points]
    found = [at_zero(tuple(points), list(column)) for column in zip(*rows, strict=True)]
    assert np.array(found, "<u2").tobytes() == secret


@pytest.mark.parametrize(("prime", "threshold", "count"), [(5, 2, 3), (5, 3, 4), (7, 3, 3)])
def test_fewer_shares_are_uniform_whatever_the_secret(prime: int, threshold: int, count: int) -> None:
    """Over all that can be drawn in a small field: t - 1 shares take every value equally often, for every secret."""
    given, left = np.arange(1, threshold), np.arange(threshold, count + 1)
    basis = interpolation(left, np.array([0, *given]), prime)
    for secret in range(prime):
        drawn = np.array(list(itertools.product(range(prime), repeat=threshold - 1)), np.int64).T
        made = basis @ np.concatenate([np.full((1, drawn.shape[1]), secret), drawn]) % prime
        values = np.concatenate([drawn, made])
        for seen in itertools.combinations(range(count), threshold - 1):
            found = {tuple(column) for column in values[list(seen)].T.tolist()}
            assert len(found) == prime ** (threshold - 1), "every combination of values, so each of them once"
        for seen in itertools.combinations(range(count), threshold):
            points = tuple(index + 1 for index in seen)
            assert {at_zero(points, column, prime) for column in values[list(seen)].T.tolist()} == {secret}


def test_drawn_elements_are_uniform_over_the_field() -> None:
    """Chi-square of 20,000 drawn elements over ten classes, and of the shares of two far secrets."""
    assert _chi_square(uniform(os.urandom(8 * 20_000)) * 10 // PRIME, 10) < 45  # 9 degrees of freedom: p = 1e-6
    for secret in (bytes(2000), b"\xff" * 2000):
        made = read_share(dealt(secret, 3, 2)[2])
        assert made.max() < PRIME
        assert _chi_square(made * 4 // PRIME, 4) < 27  # 3 degrees of freedom


def _chi_square(values: np.ndarray, classes: int) -> float:
    expected = values.size / classes
    return float((np.square(np.bincount(values, minlength=classes) - expected) / expected).sum())


@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=40))
def test_elements_are_read_as_they_were_written(elements: list[int]) -> None:
    """65536, which does not fit two bytes, too."""
    content = to_bytes(np.array(elements, np.int64))
    assert read_share(content).tolist() == elements and len(content) == -(-17 * len(elements) // 8)


def test_inverses() -> None:
    elements = np.arange(1, PRIME, 97)
    assert (elements * inverse(elements) % PRIME == 1).all()
    assert (np.arange(1, 7) * inverse(np.arange(1, 7), 7) % 7 == 1).all()


def test_what_travels_has_these_sizes() -> None:
    shares = dealt(os.urandom(SEED_BYTES), 9, 6)
    assert {len(share) for share in shares.values()} == {SHARE_BYTES} == {len(NO_SHARE)}
    with pytest.raises(ProtocolError, match="found the element 131071"):
        read_share(NO_SHARE)


def test_two_sharings_of_one_secret_differ() -> None:
    assert dealt(bytes(32), 3, 2)[3] != dealt(bytes(32), 3, 2)[3]
    assert {*dealt(bytes(16), 2, 1).values()} == {bytes(17)}, "threshold 1 hides nothing"


NOTHING = np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(read_share, to_bytes(np.array([65537]))), "found the element 65537"),
        (partial(read_share, b"\xff\xff\xff"), "found 3 bytes"),
        (partial(read_share, bytes(1)), "found 1 bytes"),
        (partial(split, bytes(3), {}, 2), "found 2 shares of 3 bytes"),
        (partial(split, bytes(2), {1: NOTHING, 2: NOTHING}, 2), "2 of them drawn"),
        (partial(split, bytes(2), {3: NOTHING}, 2), "1 of them drawn"),
        (partial(split, bytes(2), {0: NOTHING}, 2), "1 of them drawn"),
        (partial(split, bytes(2), {}, PRIME), "found 65537 shares"),
    ],
)
def test_unusable_shares_and_impossible_sharings_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        call()
