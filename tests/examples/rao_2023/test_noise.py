"""Noise on binary feedback: the distribution, and what it leaves of the gradient's direction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from device_sdk.errors import FeedbackError
from examples.rao_2023.noise import noisy_cost, truncated_normal

SIGMAS = [0.1, 0.2, 0.4, 3.0]


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_distribution_is_scipys(sigma: float) -> None:
    drawn = truncated_normal(sigma, 20_000, np.random.default_rng(3))
    expected = stats.truncnorm(0.0, 1.0 / sigma, scale=sigma)
    assert stats.kstest(drawn, expected.cdf).pvalue > 1e-3
    assert drawn.mean() == pytest.approx(expected.mean(), abs=5 * expected.std() / math.sqrt(len(drawn)))


@pytest.mark.parametrize("sigma", SIGMAS)
def test_it_is_the_inverse_of_scipys_distribution_function(sigma: float) -> None:
    uniform = np.random.default_rng(5).random(100)
    expected = stats.truncnorm(0.0, 1.0 / sigma, scale=sigma).ppf(uniform)
    np.testing.assert_allclose(truncated_normal(sigma, 100, np.random.default_rng(5)), expected, rtol=1e-7)


@given(st.floats(0, 1e6), st.integers(0, 1000))
def test_every_sigma_gives_values_in_the_unit_interval(sigma: float, seed: int) -> None:
    drawn = truncated_normal(sigma, 20, np.random.default_rng(seed))
    assert np.all((drawn >= 0) & (drawn <= 1))
    np.testing.assert_array_equal(drawn, truncated_normal(sigma, 20, np.random.default_rng(seed)))


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_the_mean_of_noisy_feedback_is_the_papers(sigma: float, cost: float) -> None:
    """E[M'] = (1 - 2 mu) M + mu, with mu below one half: costly hypotheses stay costlier on average."""
    generator = np.random.default_rng(7)
    mean = np.mean([noisy_cost(cost, sigma, generator) for _ in range(8000)])
    mu = stats.truncnorm(0.0, 1.0 / sigma, scale=sigma).mean()
    assert mu < 0.5
    assert mean == pytest.approx((1 - 2 * mu) * cost + mu, abs=0.02)


def test_without_noise_feedback_is_as_it_was() -> None:
    generator = np.random.default_rng(0)
    assert [noisy_cost(cost, 0.0, generator) for cost in (0, 1, 0.0, 1.0)] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("cost", "sigma", "words"),
    [
        (0.5, 0.1, "cost: found 0.5, expected 0 or 1"),
        (-1.0, 0.1, "cost: found -1"),
        (1.0, -0.1, "sigma: found -0.1"),
        (1.0, math.nan, "sigma: found nan"),
    ],
)
def test_what_the_formula_is_not_for(cost: float, sigma: float, words: str) -> None:
    with pytest.raises(FeedbackError, match=words):
        noisy_cost(cost, sigma, np.random.default_rng(0))
