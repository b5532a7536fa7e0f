"""Composition by privacy loss, against exact sums over outputs and against what may be added up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.privacy.gaussian import gaussian_epsilon
from server.privacy.charges import Charge
from server.privacy.composition import Spent, compose, exchanged, quick_bound
from tests.server.privacy.definition import smallest_delta

DELTA = 1e-6


def laplace(epsilon: float, words: int = 1, weight: int = 1) -> Charge:
    return Charge("discrete_laplace", "central", weight, words * weight / epsilon, words, epsilon=epsilon)


def gaussian(deviation: float, words: int = 1, weight: int = 1) -> Charge:
    ratio = words * weight**2 / deviation**2
    return Charge("discrete_gaussian", "central", weight, deviation, words, squared_ratio=ratio)


def outputs(charge: Charge, shift: int, half: int = 300) -> np.ndarray:
    values = np.arange(-half, half + 1) - shift
    spread = np.abs(values) / charge.scale
    weights = np.exp(-spread if charge.mechanism == "discrete_laplace" else -(spread**2) / 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("charge", [laplace(0.8, 2), laplace(2.0, 2, 3), gaussian(3.0, 2), gaussian(5.0, 2, 4)])
def test_two_words_against_the_whole_joint_distribution(charge: Charge) -> None:
    """Every outcome of two noised counts, summed: equation 7 of Liu & Peng 2020 at the epsilon that is stated."""
    weight = int(charge.sensitivity)
    pair = [np.outer(outputs(charge, shift), outputs(charge, shift)).ravel() for shift in (0, weight)]
    delta = 1e-4
    epsilon, _ = compose(Spent({charge: 1}), delta)
    assert smallest_delta(*pair, epsilon) <= delta
    assert smallest_delta(*pair, epsilon * 0.99) > delta, "and at no smaller one"


def test_a_smaller_change_tells_less() -> None:
    """The whole weight on every word is the worst a report can be."""
    for charge in (laplace(1.0, 2, 4), gaussian(4.0, 2, 4)):
        epsilon, _ = compose(Spent({charge: 1}), 1e-4)
        zero = np.outer(outputs(charge, 0), outputs(charge, 0)).ravel()
        for first, second in product(range(5), range(5)):
            other = np.outer(outputs(charge, first), outputs(charge, second)).ravel()
            assert max(smallest_delta(zero, other, epsilon), smallest_delta(other, zero, epsilon)) <= 1e-4


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (Spent(), (0.0, 0.0)),
        (Spent({laplace(3.0): 1}), (3.0, 0.0)),
        (Spent({Charge("gaussian", "share", 2.0, 1.0, squared_ratio=4.0): 1}), (gaussian_epsilon(2.0, DELTA), DELTA)),
        (Spent({Charge("none", "none", 1.0, 0.0, unbounded=True): 1, laplace(1.0): 2}), (math.inf, 0.0)),
        (Spent({laplace(math.nan): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), squared_ratio=-1.0): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), mechanism="sorcery"): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), coordinates=0): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), delta=DELTA): 1}), (math.inf, 0.0)),
        (Spent({laplace(1e8): 2}), (2e8, 0.0)),
    ],
)
def test_single_lines(total: Spent, expected: tuple[float, float]) -> None:
    """What makes no sense, or fails more often than asked for, counts as infinite."""
    found = compose(total, DELTA)
    assert found[0] == pytest.approx(expected[0], rel=1e-3)
    assert found[1] in (expected[1], DELTA)


def test_ten_rounds_cost_less_than_ten_times_one() -> None:
    for charge in (laplace(1.0, 20, 256), gaussian(4837.0, 20, 256)):
        one, ten = (compose(Spent({charge: rounds}), DELTA)[0] for rounds in (1, 10))
        assert one <= 1.001 and 3 * one < ten < 5 * one


def test_different_mechanisms_compose() -> None:
    counts, shares = laplace(1.0, 20, 256), gaussian(4837.0, 20, 256)
    delta = Charge("gaussian", "share", 1.0, 5.0, squared_ratio=0.04)
    parts = [compose(Spent({charge: 2}), DELTA / 3)[0] for charge in (counts, shares, delta)]
    whole = compose(Spent({counts: 2, shares: 2, delta: 2}), DELTA)[0]
    assert max(parts) < whole < sum(parts)


def test_exchanged_moves_twice_as_much() -> None:
    counts, shares, delta = exchanged(
        [laplace(1.0, 20), gaussian(9.0, 20), Charge("gaussian", "x", 1.0, 2.0, squared_ratio=0.25)]
    )
    assert (counts.coordinates, counts.epsilon) == (40, 2.0)
    assert (shares.coordinates, shares.squared_ratio) == (40, pytest.approx(40 / 81))
    assert (delta.sensitivity, delta.squared_ratio) == (2.0, 1.0)
    assert exchanged([replace(laplace(1.0), delta=1e-7)])[0].delta == pytest.approx(1e-7 * (1 + math.e))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 5), st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=3))
def test_never_more_than_what_adds_up_and_never_less_with_more(lines: list[tuple[float, int, int]]) -> None:
    total = Spent({laplace(epsilon, words, 8): times for epsilon, words, times in lines})
    epsilon, _ = compose(total, DELTA)
    assert epsilon <= quick_bound(total, DELTA) * (1 + 1e-9)
    assert compose(total.plus(laplace(0.5, 20, 8)), DELTA)[0] >= epsilon * (1 - 1e-6)
