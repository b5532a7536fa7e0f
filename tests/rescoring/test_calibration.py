from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescoring.combination import Calibration, CombinationWeights, Curve, confidence
from rescoring.marginals import posteriors

FITTED = Calibration(0.8, Curve(0.7, 0.5, 0.2, 1.0), Curve(0.9, -0.5, 0.1, 0.0))
NUMBERS = st.floats(-1e6, 1e6)


def test_the_defaults_leave_a_posterior_as_it_is() -> None:
    p = np.array([0.001, 0.3, 0.999])
    assert confidence(Curve(), p, -7.0, 3) == pytest.approx(p)
    assert confidence(Curve(), np.array([0.0, 1.0]), 0.0, 3) == pytest.approx([1e-4, 1 - 1e-4])


def test_the_curve_by_hand() -> None:
    odds = 0.7 * math.log(0.8 / 0.2) + 0.5 + 0.2 * -3 + 1.0 * -3 / 4
    assert confidence(FITTED.word, np.array([0.8]), -3.0, 4)[0] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert confidence(FITTED.word, np.array([0.8]), 2.0, 4) == confidence(FITTED.word, np.array([0.8]), 0.0, 4)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.floats(0.01, 10))
def test_posteriors_are_shares_in_the_order_of_the_scores(scores: list[float], scale: float) -> None:
    shares = posteriors(np.array(scores), scale)
    assert shares.sum() == pytest.approx(1)
    assert shares[int(np.argmax(scores))] == shares.max()


@given(
    st.builds(Curve, st.floats(0, 1e6), NUMBERS, NUMBERS, NUMBERS),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.floats(-1e6, 10),
    st.integers(0, 50),
)
def test_a_confidence_is_a_probability_and_rises_with_the_posterior(
    curve: Curve, shares: list[float], covered: float, words: int
) -> None:
    found = confidence(curve, np.array(sorted(shares)), covered, words)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()


def test_mappings_round_trip() -> None:
    weights = CombinationWeights(confidence=FITTED)
    assert CombinationWeights.from_mapping(weights.to_mapping()) == weights
    assert Calibration.from_mapping({"word": {"slope": 2.0}}) == Calibration(word=Curve(slope=2.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": 0}, "confidence.scale"),
        ({"scale": 10**400}, "confidence.scale"),
        ({"word": {"slope": -1}}, "confidence.slope"),
        ({"word": {"offset": math.nan}}, "confidence.offset"),
        ({"text": {"coverage": True}}, "confidence.coverage"),
        ({"text": {"tilt": 1}}, "confidence.text.tilt"),
        ({"temperature": 1}, "confidence.temperature"),
        ({"word": 3}, "confidence.word"),
        ([1], "confidence"),
    ],
)
def test_bad_values_are_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CombinationWeights.from_mapping({"confidence": values})
