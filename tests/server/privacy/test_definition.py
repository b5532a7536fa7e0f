"""Equation 7 of Liu & Peng 2020, on mechanisms that can be written down."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.privacy.definition import is_private, smallest_delta


def laplace(scale: float, shift: int = 0) -> np.ndarray:
    values = np.exp(-np.abs(np.arange(-2000, 2001) - shift) / scale)
    return np.asarray(values / values.sum())


def test_randomized_response_by_hand() -> None:
    """Three in four tell the truth: e^epsilon = 3. At epsilon 0 delta is 3/4 - 1/4."""
    yes, no = [0.75, 0.25], [0.25, 0.75]
    assert smallest_delta(yes, no, math.log(3)) == pytest.approx(0)
    assert smallest_delta(yes, no, 0) == pytest.approx(0.5)
    assert is_private(yes, no, math.log(3) + 1e-9)
    assert not is_private(yes, no, math.log(2.9))
    assert is_private(yes, no, 0, 0.5)


@pytest.mark.parametrize("scale", [1.0, 3.0, 12.5])
def test_one_count_under_discrete_laplace(scale: float) -> None:
    """Equation 9's claim holds for a count that changes by 1, and for no less noise and no larger change."""
    assert is_private(laplace(scale), laplace(scale, 1), 1 / scale)
    assert not is_private(laplace(scale), laplace(scale, 1), 0.99 / scale)
    assert not is_private(laplace(scale), laplace(scale, 2), 1 / scale)


@given(st.floats(0.5, 20), st.integers(1, 5), st.floats(0, 3), st.floats(0, 3))
def test_delta_falls_with_epsilon(scale: float, shift: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    pair = laplace(scale), laplace(scale, shift)
    assert smallest_delta(*pair, low) >= smallest_delta(*pair, high) - 1e-12


@pytest.mark.parametrize(
    ("outputs", "neighbours", "epsilon", "named"),
    [
        ([0.5, 0.5], [1.0], 1, "neighbours"),
        ([1.5], [1.0], 1, "outputs"),
        ([1.0], [-1.0], 1, "neighbours"),
        ([1.0], [1.0], -1, "epsilon"),
    ],
)
def test_arguments_are_named(outputs: list[float], neighbours: list[float], epsilon: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        smallest_delta(outputs, neighbours, epsilon)
