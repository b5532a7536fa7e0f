"""Discrete Laplace noise and Gaussian accounting, against opendp's map and dp-accounting's PLD."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from server.privacy import laplace
from server.privacy.gaussian import gaussian_delta, gaussian_epsilon
from server.privacy.laplace import laplace_scale, noise_variance, noised


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.3, 20.0])
def test_spread_of_the_draws(epsilon: float) -> None:
    plan = MarginalPlan(epsilon=epsilon)
    draws = noised(np.zeros(20_000, np.int64), plan).astype(np.float64)
    expected = noise_variance(laplace_scale(plan))
    # The kurtosis of a Laplace draw is 6: five standard errors of the variance of 20,000 draws are 18 %.
    assert draws.var() == pytest.approx(expected, rel=0.18)
    assert abs(draws.mean()) < 5 * math.sqrt(expected / draws.size)


def test_noise_is_fresh_and_added_to_the_counts() -> None:
    plan = MarginalPlan(epsilon=1.0)
    counts = np.full(50, 10**9, np.int64)
    first, second = noised(counts, plan), noised(counts, plan)
    assert first.dtype == np.int64
    assert not np.array_equal(first, second)
    assert abs(first.mean() - 10**9) < 10**6
    assert np.array_equal(noised(counts, MarginalPlan(epsilon=1e8)), counts)


@pytest.mark.parametrize(
    ("max_words", "max_weight", "units"), [(20, 1.0, 20 * FIXED_POINT), (1, 0.5, 128), (3, 0.001, 3), (2, 1.9999, 1022)]
)
def test_sensitivity_is_the_bound_that_devices_keep(max_words: int, max_weight: float, units: int) -> None:
    assert l1_sensitivity(MarginalPlan(max_words=max_words, max_weight=max_weight)) == units


def test_a_scale_that_costs_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "laplace_scale", lambda plan: 10.0)
    with pytest.raises(PrivacyError, match="noise scale"):
        noised(np.zeros(3, np.int64), MarginalPlan(epsilon=1.0))


def test_variance_against_the_sum_of_the_distribution() -> None:
    scale = 2.5
    values = np.arange(-400, 401)
    weights = np.exp(-np.abs(values) / scale)
    assert noise_variance(scale) == pytest.approx((values**2 * weights).sum() / weights.sum(), rel=1e-9)
    assert noise_variance(0.0) == noise_variance(1e-6) == 0.0


@pytest.mark.parametrize(("ratio", "rounds"), [(0.05, 1), (0.3, 4), (1.0, 1), (1.0, 9)])
def test_gaussian_composition_against_pld(ratio: float, rounds: int) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    peer = pld.from_gaussian_mechanism(1 / ratio, value_discretization_interval=1e-3).self_compose(rounds)
    ours = gaussian_epsilon(ratio * math.sqrt(rounds), 1e-6)
    assert ours == pytest.approx(peer.get_epsilon_for_delta(1e-6), rel=2e-3)


@given(st.floats(1e-3, 300), st.floats(1e-12, 0.3))
def test_gaussian_epsilon_is_the_smallest_that_holds(ratio: float, delta: float) -> None:
    epsilon = gaussian_epsilon(ratio, delta)
    assert gaussian_delta(ratio, epsilon) <= delta
    if epsilon > 0:
        assert gaussian_delta(ratio, epsilon * (1 - 1e-6)) >= delta * (1 - 1e-3)


@pytest.mark.parametrize(("ratio", "epsilon"), [(0.0, 0.0), (1e-9, 0.0), (math.inf, math.inf), (2e6, math.inf)])
def test_gaussian_edges(ratio: float, epsilon: float) -> None:
    assert gaussian_epsilon(ratio, 1e-6) == epsilon
    assert gaussian_delta(0.0, 1.0) == 0.0


@pytest.mark.parametrize("ratio", [1e3, 1e4, 1e5, 9e5])
def test_gaussian_epsilon_of_next_to_no_noise(ratio: float) -> None:
    """As the ratio grows, epsilon tends to r^2 / 2 + r z with Phi(z) = 1 - delta."""
    assert (gaussian_epsilon(ratio, 1e-6) - ratio**2 / 2) / ratio == pytest.approx(4.753424, abs=2e-3)


@pytest.mark.parametrize(("ratio", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_gaussian_domain(ratio: float, delta: float) -> None:
    with pytest.raises(PrivacyError, match="expected ratio"):
        gaussian_epsilon(ratio, delta)
