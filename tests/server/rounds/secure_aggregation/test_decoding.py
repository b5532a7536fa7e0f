"""Secrets are found around false shares, whoever sends them; what they cost is bounded."""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest

from device_sdk.secure_aggregation.shares import PRIME, read_share, to_bytes
from server.rounds.secure_aggregation.unmasking import WORK, Budget, decode
from tests.device_sdk.secure_aggregation.test_shares import dealt

Lie = Callable[[bytes, np.random.Generator], bytes]


def any_share(share: bytes, rng: np.random.Generator) -> bytes:
    return to_bytes(rng.integers(0, PRIME, read_share(share).size))


def one_element(share: bytes, _: np.random.Generator) -> bytes:
    """What all liars agree on: the same change of the same element."""
    elements = read_share(share)
    elements[5] = (elements[5] + 7) % PRIME
    return to_bytes(elements)


def found(count: int, threshold: int, liars: int, lie: Lie, *, doubted: bool = False, work: int = WORK) -> tuple:
    """(what is decoded, the secret, the points of those who lied)."""
    rng, secret = np.random.default_rng(0), os.urandom(16)
    shares = dealt(secret, count, threshold)
    false = frozenset((rng.choice(count, liars, replace=False) + 1).tolist())
    shares |= {point: lie(shares[point], rng) for point in false}
    known = false if doubted else frozenset()
    return decode(shares, threshold, lambda each: each == secret, known, Budget(work)), secret, false


@pytest.mark.parametrize(
    ("count", "threshold", "liars", "lie"),
    [
        *((9, 6, liars, lie) for liars in range(4) for lie in (any_share, one_element)),
        *((15, 10, liars, lie) for liars in (4, 5) for lie in (any_share, one_element)),
        (3, 2, 1, one_element),
        (2, 2, 0, one_element),
        (50, 34, 8, one_element),
        (50, 34, 14, any_share),
        (50, 40, 5, one_element),
        (256, 171, 42, one_element),
        (256, 171, 75, any_share),
    ],
)
def test_as_many_true_shares_as_the_threshold_asks_for_are_found_among_false_ones(count, threshold, liars, lie) -> None:
    decoded, secret, false = found(count, threshold, liars, lie)
    assert decoded is not None and decoded.secret == secret
    certain = 2 * liars <= count - threshold
    assert decoded.false == (false if certain else frozenset()), "who lied is told where it is certain"


def test_liars_that_agree_on_another_polynomial_with_the_same_secret_frame_nobody() -> None:
    """Two of nine hold shares of a polynomial that four honest shares and the secret are on as well, and three are not:
    whichever is found first, no honest holder may be named."""
    secret = os.urandom(16)
    true = dealt(secret, 9, 6)

    def apart(point: int) -> int:
        """A polynomial of degree 5 that is zero at 0 and at 3, 4, 5 and 6, times what makes it anything elsewhere."""
        value = 12345 * point
        for zero in (3, 4, 5, 6):
            value = value * (point - zero) % PRIME
        return value

    shares = true | {point: to_bytes((read_share(true[point]) + apart(point)) % PRIME) for point in (1, 2)}
    decoded = decode(shares, 6, lambda each: each == secret, frozenset(), Budget())
    assert decoded is not None and (decoded.secret, decoded.false) == (secret, frozenset())


def test_known_liars_are_not_asked() -> None:
    """More than could be found by their shares alone, were they not known from other secrets."""
    decoded, secret, _ = found(50, 34, 16, one_element, doubted=True)
    assert decoded is not None and decoded.secret == secret and found(50, 34, 16, one_element)[0] is None


@pytest.mark.parametrize(
    ("count", "threshold", "liars"), [(6, 6, 1), (9, 6, 4), (16, 11, 6), (50, 34, 17), (256, 171, 86)]
)
def test_what_cannot_be_decoded_costs_bounded_work(count: int, threshold: int, liars: int) -> None:
    """Of a group's secrets one uses up the trials; the others cost what follows from its size."""
    begun = time.process_time()
    assert found(count, threshold, liars, any_share)[0] is None
    first = time.process_time() - begun
    assert found(count, threshold, liars, any_share, work=0)[0] is None
    second = time.process_time() - begun - first
    print(f"{count} devices: {first:.2f} s with all trials, {second:.3f} s without")
    assert first < 10 and second < 1
