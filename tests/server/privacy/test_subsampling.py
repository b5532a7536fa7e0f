"""Amplified accounting: against dp-accounting's own sampled mechanisms, and against whole output distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld

from server.privacy.charges import Charge
from server.privacy.composition import Spent, compose, exchanged, quick_bound
from tests.server.privacy.definition import smallest_delta

DELTA = 1e-6


def gaussian(z: float, q: float) -> Charge:
    return Charge("gaussian", "central", 1.0, z, squared_ratio=z**-2, sampling=q)


def laplace(epsilon: float, q: float, words: int = 1, weight: int = 1) -> Charge:
    scale = words * weight / epsilon
    return Charge("discrete_laplace", "central", weight, scale, words, epsilon=epsilon, sampling=q)


@pytest.mark.parametrize(
    ("q", "z", "rounds"), [(0.01, 1.0, 1), (0.01, 1.0, 1000), (0.001, 0.6, 3000), (0.1, 2.0, 100), (0.5, 1.0, 5)]
)
def test_sampled_gaussians_cost_what_dp_accounting_says(q: float, z: float, rounds: int) -> None:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds)
    expected = accountant.get_epsilon(DELTA)
    found, delta = compose(Spent({gaussian(z, q): rounds}), DELTA)
    assert delta == DELTA and expected * (1 - 1e-4) <= found <= expected * (1 + 1e-3)


def test_sampled_laplace_against_dp_accounting() -> None:
    how = {"value_discretization_interval": 1e-4, "sampling_prob": 0.1, "use_connect_dots": True}
    expected = pld.from_discrete_laplace_mechanism(1 / 6, 3, **how).self_compose(20).get_epsilon_for_delta(DELTA)
    charge = Charge("discrete_laplace", "central", 3, 6.0, 1, epsilon=0.5, sampling=0.1)
    assert compose(Spent({charge: 20}), DELTA)[0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("q", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("replaced", [False, True])
def test_all_words_of_a_report_are_sampled_together(q: float, replaced: bool) -> None:
    """Every outcome of two noised counts that come or stay away together. As if each word were sampled on its own,
    less would be stated than is lost."""
    charge = laplace(1.6, q, 2)

    def outputs(shift: int) -> np.ndarray:
        weights = np.exp(-np.abs(np.arange(-200, 201) - shift) / charge.scale)
        return np.asarray(weights / weights.sum())

    without, reported = (np.outer(outputs(shift), outputs(shift)).ravel() for shift in (0, 1))
    other = np.outer(outputs(-1), outputs(-1)).ravel()
    mixture = (1 - q) * without + q * reported
    neighbour = (1 - q) * without + q * other if replaced else without
    epsilon, _ = compose(Spent({exchanged([charge])[0] if replaced else charge: 1}), 1e-4)
    pairs = (mixture, neighbour), (neighbour, mixture)
    assert max(smallest_delta(*pair, epsilon) for pair in pairs) <= 1e-4
    if not replaced:  # the bound on exchanged reports is not tight
        assert max(smallest_delta(*pair, 0.99 * epsilon - 1e-3) for pair in pairs) > 1e-4


def test_sampling_saves_and_never_adds() -> None:
    for charge in (gaussian(1.0, 0.1), laplace(1.0, 0.1, 20, 256)):
        for rounds in (1, 10):
            whole = Spent({replace(charge, sampling=1.0): rounds})
            assert compose(Spent({charge: rounds}), DELTA)[0] < 0.7 * compose(whole, DELTA)[0]
            nearly = Spent({replace(charge, sampling=0.999): rounds})
            assert compose(nearly, DELTA)[0] <= compose(whole, DELTA)[0] * (1 + 1e-3)


def test_sampled_and_full_charges_compose() -> None:
    sampled, full = gaussian(1.0, 0.01), laplace(0.5, 1.0)
    parts = [compose(Spent({charge: 3}), DELTA / 2)[0] for charge in (sampled, full)]
    assert max(parts) < compose(Spent({sampled: 3, full: 3}), DELTA)[0] <= sum(parts) * (1 + 1e-9)


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_that_is_none_counts_as_infinite(q: float) -> None:
    assert compose(Spent({gaussian(1.0, q): 1}), DELTA)[0] == math.inf


def test_what_noise_hides_too_little_is_stated_without_sampling() -> None:
    total = Spent({gaussian(0.01, 0.1): 1})
    assert compose(total, DELTA)[0] == quick_bound(total, DELTA) > 500
