"""Shamir's sharing: enough shares give the secret, fewer are independent of it."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation import shares
from device_sdk.secure_aggregation.shares import PRIME, evaluate, read_share, split


def at_zero(points: tuple[int, ...], values: list[int], prime: int = PRIME) -> int:
    """The value at 0 of the polynomial through these points, by Lagrange's formula."""
    total = 0
    for point, value in zip(points, values, strict=True):
        factors = [(other, other - point) for other in points if other != point]
        numerator, denominator = math.prod(each for each, _ in factors), math.prod(each for _, each in factors)
        total += value * numerator * pow(denominator, -1, prime)
    return total % prime


@st.composite
def _sharings(draw: st.DrawFn) -> tuple[bytes, int, int, list[int]]:
    count = draw(st.integers(1, 60))
    threshold = draw(st.integers(1, count))
    secret = draw(st.binary(min_size=1, max_size=16)) * 2
    return secret, count, threshold, draw(st.permutations(range(1, count + 1)))[:threshold]


@given(_sharings())
def test_any_threshold_of_the_shares_gives_the_secret(case: tuple[bytes, int, int, list[int]]) -> None:
    secret, count, threshold, points = case
    dealt = split(secret, count, threshold)
    rows = [read_share(dealt[point - 1]).tolist() for point in points]
    found = [at_zero(tuple(points), list(column)) for column in zip(*rows, strict=True)]
    assert len(dealt) == count and np.array(found, "<u2").tobytes() == secret


@pytest.mark.parametrize(("prime", "threshold", "count"), [(5, 2, 3), (5, 3, 4), (7, 3, 3)])
def test_fewer_shares_are_uniform_whatever_the_secret(prime: int, threshold: int, count: int) -> None:
    """Over all polynomials of a small field: t - 1 shares take every value equally often, for every secret."""
    for secret in range(prime):
        rest = np.array(list(itertools.product(range(prime), repeat=threshold - 1)), np.int64).T
        values = evaluate(np.concatenate([np.full((1, rest.shape[1]), secret), rest]), count, prime)
        for seen in itertools.combinations(range(count), threshold - 1):
            found = {tuple(column) for column in values[list(seen)].T.tolist()}
            assert len(found) == prime ** (threshold - 1), "every combination of values, so each of them once"
        for seen in itertools.combinations(range(count), threshold):
            points = tuple(index + 1 for index in seen)
            assert {at_zero(points, column, prime) for column in values[list(seen)].T.tolist()} == {secret}


def test_coefficients_are_uniform_over_the_field() -> None:
    """Chi-square of 20,000 drawn coefficients over five residues, and of the shares of two far secrets."""
    assert _chi_square(shares._uniform((100, 200), 5).ravel(), 5) < 30  # 4 degrees of freedom: p = 5e-6
    for secret in (bytes(2000), b"\xff" * 2000):
        one = np.frombuffer(split(secret, 3, 2)[0], "<u4").astype(np.int64)
        assert one.max() < PRIME
        assert _chi_square(one * 4 // PRIME, 4) < 27  # 3 degrees of freedom


def _chi_square(values: np.ndarray, classes: int) -> float:
    expected = values.size / classes
    return float((np.square(np.bincount(values, minlength=classes) - expected) / expected).sum())


def test_the_largest_element_is_read_and_written() -> None:
    """65536 does not fit two bytes: shares have four for each element."""
    values = evaluate(np.array([[1], [65535]], np.int64), 1)
    assert values.tolist() == [[65536]] and read_share(values[0].astype("<u4").tobytes()).tolist() == [65536]


def test_two_sharings_of_one_secret_differ() -> None:
    assert split(bytes(32), 3, 2) != split(bytes(32), 3, 2)
    assert split(bytes(32), 2, 1) == [bytes(64)] * 2, "threshold 1 hides nothing"


SIZES = [(3, 2, 2), (2, 1, 2), (2, 2, 0), (2, PRIME, 2)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(read_share, b"\x01\x00\x01\x00"), "found the element 65537"),
        (partial(read_share, b"\xff\xff\xff\xff"), "found the element 4294967295"),
        (partial(read_share, bytes(3)), "found 3 bytes"),
        *((partial(split, bytes(size), *of), "expected 1 <= threshold") for size, *of in SIZES),
    ],
)
def test_unusable_shares_and_impossible_sharings_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        call()
