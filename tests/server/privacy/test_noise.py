"""Noise and Gaussian accounting against dp-accounting, and a canary attack on the samplers: shipped and broken ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import l2_sensitivity
from device_sdk.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_ratio
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from server.privacy import noise
from server.privacy.audit import BROKEN, SHIPPED, audit, clopper_pearson
from server.privacy.noise import Noise, add_noise, plan_noise, released_variance


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.3, 20.0])
def test_spread_of_the_draws(epsilon: float) -> None:
    plan = MarginalPlan(epsilon=epsilon)
    draws = add_noise(np.zeros(20_000, np.int64), plan).astype(np.float64)
    expected = plan_noise(plan).variance
    # The kurtosis of a Laplace draw is 6: five standard errors of the variance of 20,000 draws are 18 %.
    assert draws.var() == pytest.approx(expected, rel=0.18)
    assert abs(draws.mean()) < 5 * math.sqrt(expected / draws.size)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-9)])
def test_gaussian_noise_has_the_deviation_that_the_plan_asks_for(epsilon: float, delta: float) -> None:
    plan = MarginalPlan(mechanism="discrete_gaussian", epsilon=epsilon, delta=delta)
    deviation = plan_noise(plan).scale
    assert epsilon * (1 - 1e-4) <= gaussian_epsilon(l2_sensitivity(plan) / deviation, delta) <= epsilon
    draws = add_noise(np.zeros(5_000, np.int64), plan)
    assert draws.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * draws.size))
    assert np.abs(draws).max() < 6 * deviation


def test_papers_noise_is_one_over_epsilon_words() -> None:
    plan = MarginalPlan(mode="paper", epsilon=0.5)
    assert plan_noise(plan).scale == 2.0 * FIXED_POINT
    assert released_variance(plan, 9) == pytest.approx(2 * 2.0**2, rel=1e-4)


def test_variance_of_a_release_counts_the_draws_in_it() -> None:
    central = MarginalPlan(mechanism="discrete_gaussian")
    shares = MarginalPlan(mechanism="discrete_gaussian", trust="distributed", minimum_survivors=10)
    assert released_variance(shares, 10) == pytest.approx(released_variance(central, 10), rel=1e-5)
    assert released_variance(shares, 20) == pytest.approx(2 * released_variance(central, 1), rel=1e-5)
    with pytest.raises(PrivacyError, match="devices add the noise"):
        add_noise(np.zeros(3, np.int64), shares)


def test_noise_is_fresh_and_added_to_the_counts() -> None:
    plan = MarginalPlan(epsilon=1.0)
    counts = np.full(50, 10**9, np.int64)
    first, second = add_noise(counts, plan), add_noise(counts, plan)
    assert first.dtype == np.int64 and not np.array_equal(first, second) and abs(first.mean() - 10**9) < 10**6
    assert np.array_equal(add_noise(counts, MarginalPlan(epsilon=1e8)), counts)


def test_a_scale_that_costs_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "plan_noise", lambda plan: Noise("discrete_laplace", 10.0))
    with pytest.raises(PrivacyError, match="noise scale"):
        add_noise(np.zeros(3, np.int64), MarginalPlan(epsilon=1.0))


def test_variance_against_the_sum_of_the_distribution() -> None:
    scale = 2.5
    values = np.arange(-400, 401)
    weights = np.exp(-np.abs(values) / scale)
    found = Noise("discrete_laplace", scale).variance
    assert found == pytest.approx((values**2 * weights).sum() / weights.sum(), rel=1e-9)
    assert Noise("discrete_laplace", 1e-6).variance == 0.0


@given(st.floats(1e-3, 300), st.floats(1e-12, 0.3))
def test_gaussian_epsilon_is_the_smallest_that_holds_and_the_ratio_its_inverse(ratio: float, delta: float) -> None:
    epsilon = gaussian_epsilon(ratio, delta)
    assert gaussian_delta(ratio, epsilon) <= delta
    if epsilon > 1e-3:
        assert gaussian_delta(ratio, epsilon * (1 - 1e-6)) >= delta * (1 - 1e-3)
        found = gaussian_ratio(epsilon, delta)
        assert gaussian_delta(found, epsilon) <= delta <= gaussian_delta(found * (1 + 1e-6), epsilon) * (1 + 2e-3)


@pytest.mark.parametrize(("ratio", "epsilon"), [(0.0, 0.0), (1e-9, 0.0), (math.inf, math.inf), (2e6, math.inf)])
def test_gaussian_edges(ratio: float, epsilon: float) -> None:
    """As the ratio grows, epsilon tends to r^2 / 2 + r z with Phi(z) = 1 - delta."""
    assert gaussian_epsilon(ratio, 1e-6) == epsilon
    for large in (1e3, 1e4, 1e5, 9e5):
        assert (gaussian_epsilon(large, 1e-6) - large**2 / 2) / large == pytest.approx(4.753424, abs=2e-3)


@pytest.mark.parametrize("domain", [(-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_gaussian_domains(domain: tuple[float, float]) -> None:
    with pytest.raises(PrivacyError, match="expected ratio"):
        gaussian_epsilon(*domain)
    with pytest.raises(PrivacyError, match="expected epsilon"):
        gaussian_ratio(*domain)


QUICK = 100_000
SURE = 0.99999
"""A test that fails once in so many runs, where 95 % would fail once in a few hundred."""


@pytest.mark.parametrize("name", [name for name in (*SHIPPED, *BROKEN) if not name.endswith("deltas")])
def test_what_ships_keeps_its_claim_and_what_is_broken_is_found(name: str) -> None:
    finding = audit(name, QUICK if name.endswith("Laplace") and name in SHIPPED else 40_000, confidence=SURE)
    assert finding.flagged == (name in BROKEN)
    assert finding.lower_bound > (1.2 if name in BROKEN else 0.25), "an attack that finds nothing audits nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*SHIPPED, *BROKEN) if not name.endswith("deltas")])
def test_a_million_runs(name: str) -> None:
    finding = audit(name, 1_000_000)
    assert finding.flagged == (name in BROKEN) and finding.lower_bound > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*SHIPPED, *BROKEN) if name.endswith("deltas")])
def test_a_hundred_thousand_masked_deltas(name: str) -> None:
    """Clipped to the bound, rotated, rounded, noised and summed, 64 values each."""
    finding = audit(name, 100_000)
    print(finding)
    assert finding.flagged == (name in BROKEN) and finding.lower_bound > (1.5 if name in BROKEN else 0.5)


@pytest.mark.parametrize(("hits", "runs"), [(0, 50), (1, 50), (25, 50), (50, 50), (123, 100_000)])
def test_bounds_against_scipys(hits: int, runs: int) -> None:
    expected = binomtest(hits, runs).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, runs, 0.025) == pytest.approx((expected.low, expected.high))
