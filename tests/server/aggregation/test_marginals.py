"""Equation 6 over bounded counts, its algebra and its post-processing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from device_sdk.wire.messages import FIXED_POINT
from server.aggregation.marginals import nearest_counts, nearest_distribution, smoothed, sum_counts, surviving_counts

WORDS = 12
LAPLACE = "discrete_laplace"
REPORTS = st.lists(st.dictionaries(st.integers(0, WORDS - 1), st.integers(1, FIXED_POINT), max_size=6), max_size=8)


def global_marginal(released: Any, variance: float, background: Any, smoothing: float) -> Any:
    return smoothed(surviving_counts(np.asarray(released), variance, LAPLACE), background, smoothing)


@given(REPORTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(reports: list[dict[int, int]], random: Any) -> None:
    one, other = (sum_counts(each, WORDS) for each in (reports, random.sample(reports, len(reports))))
    assert np.array_equal(one, other)


@given(hnp.arrays(np.float64, WORDS, elements=st.floats(-20, 100)))
def test_the_nearest_distribution(values: Any) -> None:
    assume(values.sum() > 1e-3)
    ratio = values / values.sum()
    nearest = nearest_distribution(ratio)
    assert nearest.min() >= 0 and nearest.sum() == pytest.approx(1)
    others = np.random.default_rng(0).dirichlet(np.ones(WORDS), 50)
    assert np.square(nearest - ratio).sum() <= np.square(others - ratio).sum(axis=1).min() + 1e-9


def test_the_nearest_distribution_by_hand() -> None:
    """A threshold of 1/14 off the two that stay."""
    assert nearest_distribution(np.array([1.0, -1 / 7, 1 / 7])) == pytest.approx([13 / 14, 0, 1 / 14])
    assert nearest_distribution(np.array([0.2, 0.0, 0.8])) == pytest.approx([0.2, 0.0, 0.8])


@given(REPORTS)
def test_is_equation_6_when_smoothing_vanishes(reports: list[dict[int, int]]) -> None:
    weights = [sum(report.values()) for report in reports]
    if not sum(weights):
        return
    counts = [np.bincount(list(report), list(report.values()), WORDS) for report in reports]
    personal = [count / max(1, weight) for count, weight in zip(counts, weights, strict=True)]
    expected = np.average(personal, axis=0, weights=weights)
    found = global_marginal(sum_counts(reports, WORDS), 0.0, np.full(WORDS, 1 / WORDS), 1e-9)
    assert np.allclose(found, expected, atol=1e-6)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=WORDS, max_size=WORDS), st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_is_a_positive_distribution_whatever_the_noise(released: list[int], variance: float, smoothing: float) -> None:
    background = np.arange(1, WORDS + 1) / np.arange(1, WORDS + 1).sum()
    found = global_marginal(released, variance, background, smoothing)
    assert found.shape == (WORDS,) and (found > 0).all() and found.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("count", "deviation", "kept"),
    [(-5.0, 0.0, 0.0), (0.5, 0.0, 0.5), (2.9, 1.0, 0.0), (3.0, 1.0, 3.0), (100.0, 40.0, 0.0)],
)
def test_suppression_below_three_deviations(count: float, deviation: float, kept: float) -> None:
    released = np.array([int(count * FIXED_POINT)])
    assert surviving_counts(released, deviation**2, LAPLACE)[0] == pytest.approx(kept, abs=1 / FIXED_POINT)


def test_nearest_counts_by_hand() -> None:
    """What noise took from one word, it is taken back from those that stand out."""
    assert nearest_counts(FIXED_POINT * np.array([5, 0, -1])) == pytest.approx([4, 0, 0])
    assert nearest_counts(FIXED_POINT * np.array([5, 3, 0])) == pytest.approx([5, 3, 0])
    assert not nearest_counts(FIXED_POINT * np.array([1, -3])).any()


def test_no_evidence_gives_the_background() -> None:
    background = np.array([0.7, 0.2, 0.1])
    assert np.allclose(global_marginal(np.zeros(3, np.int64), 1.0, background, 5.0), background)


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_noise_alone_lifts_fewer_than_one_word_of_a_list(mechanism: str, rounds: int) -> None:
    rng, laplace = np.random.default_rng(7), mechanism == "discrete_laplace"
    noise = (rng.laplace if laplace else rng.normal)(scale=40.0, size=(200, rounds, 2379)).sum(axis=1)
    variance = rounds * (2 if laplace else 1) * 40.0**2
    released = np.round(noise * FIXED_POINT).astype(np.int64)
    assert np.mean([np.count_nonzero(surviving_counts(row, variance, mechanism)) for row in released]) < 1.3
    if laplace and rounds == 1:
        assert np.mean([np.count_nonzero(row > 3.0 * np.sqrt(variance) * FIXED_POINT) for row in released]) > 10
