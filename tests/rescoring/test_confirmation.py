from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rescoring.confirmation import confirmation

COUNTS = hnp.arrays(np.float64, 5, elements=st.floats(0, 100))


def test_by_hand() -> None:
    found = confirmation(np.array([0.0, 3.0, 1.0]), np.array([2.0, 1.0, 1.0]), 2.0, 0.5)
    assert found.tolist() == pytest.approx([2 * math.log(0.5 / 2.5), 2 * math.log(3.5 / 1.5), 0.0])


@given(COUNTS, COUNTS, st.floats(0, 10), st.floats(0.1, 10))
def test_what_is_heard_as_it_is_said_stays_and_mistakes_lose(
    told: np.ndarray, heard: np.ndarray, strength: float, smoothing: float
) -> None:
    assert not confirmation(told, told, strength, smoothing).any()
    found = confirmation(told, heard, strength, smoothing)
    np.testing.assert_allclose(found, -confirmation(heard, told, strength, smoothing), atol=1e-9)
    assert (np.sign(np.round(found, 9)) * np.sign(told - heard) >= 0).all()
    assert np.abs(found).max() <= strength * math.log((100 + smoothing) / smoothing) + 1e-9


@pytest.mark.parametrize(
    ("told", "strength", "smoothing", "message"),
    [([1.0], -1.0, 1.0, "strength"), ([1.0], 1.0, 0.0, "smoothing"), ([1.0, 2.0], 1.0, 1.0, "told, heard"),
     ([-1.0], 1.0, 1.0, "told, heard")],
)  # fmt: skip
def test_bad_values_are_named(told: list[float], strength: float, smoothing: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confirmation(np.array(told), np.array([1.0]), strength, smoothing)
