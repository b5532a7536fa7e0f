from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescoring.marginals import adaptation, adapted_probabilities
from rescoring.strength import GRID, best_strength, predictive_gains

BACKGROUND = np.array([0.5, 0.3, 0.2])
MARGINAL = np.array([0.2, 0.2, 0.6])


def test_gains_by_hand() -> None:
    counts = np.array([1.0, 0.0, 2.0])
    ratios = MARGINAL / BACKGROUND
    expected = []
    for strength in (0.0, 1.0, 2.0):
        z = float((BACKGROUND * ratios**strength).sum())
        expected.append(math.log(ratios[0] ** strength / z) + 2 * math.log(ratios[2] ** strength / z))
    found = predictive_gains(counts, MARGINAL, BACKGROUND, (0.0, 1.0, 2.0))
    assert found.tolist() == pytest.approx(expected)
    assert found[:2].tolist() == pytest.approx([0.0, math.log(0.4) + 2 * math.log(3.0)])


@given(st.lists(st.floats(0, 9), min_size=3, max_size=3), st.floats(0, 4))
def test_a_gain_is_what_the_normalized_model_gains(counts: list[float], strength: float) -> None:
    adapted = adapted_probabilities(BACKGROUND, adaptation(MARGINAL, BACKGROUND, strength))
    expected = np.array(counts) @ np.log(adapted / BACKGROUND)
    found = predictive_gains(np.array(counts), MARGINAL, BACKGROUND, (strength,))
    assert float(found[0]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("true", [0.0, 0.5, 1.0, 2.0])
def test_the_lambda_that_made_the_words_is_found(true: float) -> None:
    rng = np.random.default_rng(3)
    source = adapted_probabilities(BACKGROUND, adaptation(MARGINAL, BACKGROUND, true))
    said = np.bincount(rng.choice(3, size=4000, p=source), minlength=3).astype(np.float64)
    assert best_strength(predictive_gains(said, MARGINAL, BACKGROUND), 1.0) == pytest.approx(true, abs=0.13)


def test_it_begins_between_the_start_and_the_grid_and_needs_a_gain_for_each() -> None:
    assert best_strength(np.zeros(len(GRID)), 2.0) == pytest.approx(0.5 * 2.0 + 0.5 * np.mean(GRID))
    with pytest.raises(ValueError, match="gains"):
        best_strength([0.0], 1.0)
