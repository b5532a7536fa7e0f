"""Equations 6, 8 and 9 of Liu & Peng 2020 by hand, and their algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from server.aggregation.federated_average import (
    averaged_deltas,
    clamped,
    distribution_delta,
    federated_average,
    laplace_noise,
    nearest_distribution,
    noised_average,
    sampled_users,
)

WORDS = 7


@st.composite
def clients(draw: st.DrawFn) -> tuple[Any, Any]:
    """(distributions [K, WORDS], pseudo-counts [K])."""
    number = draw(st.integers(1, 6))
    counts = draw(hnp.arrays(np.float64, (number, WORDS), elements=st.floats(0.01, 50)))
    return counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1)


def test_equation_6_by_hand() -> None:
    """Ten words of one client, thirty of another: (10 * 0.5 + 30 * 0.1) / 40 = 0.2, and so on."""
    average = federated_average([[0.5, 0.5, 0.0], [0.1, 0.3, 0.6]], [10, 30])
    assert average == pytest.approx([0.2, 0.35, 0.45])


def test_deltas_by_hand() -> None:
    before = [0.4, 0.4, 0.2]
    delta = distribution_delta([0.5, 0.5, 0.0], before)
    assert delta == pytest.approx([0.1, 0.1, -0.2])
    assert averaged_deltas(before, [delta, [0.0, 0.0, 0.0]], [1, 3]) == pytest.approx([0.425, 0.425, 0.15])


def test_equation_8_by_hand() -> None:
    """(6 + 1, 3 - 4, 1 + 0) over 10 - 3: the second word's noise outweighs its count."""
    average = noised_average([6, 3, 1], [1, -4, 0])
    assert average == pytest.approx([1.0, -1 / 7, 1 / 7])
    assert clamped(average) == pytest.approx([7 / 8, 0, 1 / 8])
    # The nearest point of the simplex: a threshold of 1/14 off the two that stay.
    assert nearest_distribution(average) == pytest.approx([13 / 14, 0, 1 / 14])
    assert noised_average([6, 3, 1], [0, 0, 0]) == pytest.approx([0.6, 0.3, 0.1])
    with pytest.raises(ValueError, match="sum to -1"):
        noised_average([1, 1], [-3, 0])


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_equation_9_has_the_papers_spread(epsilon: float) -> None:
    """Variance 2 / epsilon^2; the kurtosis of a Laplace draw is 6, so five standard errors of 20,000 are 8 %."""
    draws = laplace_noise(20_000, epsilon)
    assert draws.var() == pytest.approx(2 / epsilon**2, rel=0.08)
    assert abs(draws.mean()) < 5 * np.sqrt(2 / draws.size) / epsilon
    assert np.array_equal(draws * 256, np.round(draws * 256)), "on the grid of 1 / 256"
    assert np.mean(np.abs(draws) > np.log(4) / epsilon) == pytest.approx(1 / 4, abs=0.02)


@given(clients())
def test_equation_6_is_a_distribution(found: tuple[Any, Any]) -> None:
    average = federated_average(*found)
    assert average.sum() == pytest.approx(1)
    assert average.min() >= 0
    assert (average <= found[0].max(axis=0) + 1e-12).all()


@given(clients(), st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(found: tuple[Any, Any], random: Any) -> None:
    rows, weights = found
    order = list(range(len(weights)))
    random.shuffle(order)
    assert federated_average(rows[order], weights[order]) == pytest.approx(federated_average(rows, weights))


@given(clients())
def test_disjoint_clients_may_be_merged_first(found: tuple[Any, Any]) -> None:
    """Equation 6 over clients is equation 4 over all that they said."""
    rows, weights = found
    together = (rows * weights[:, None]).sum(axis=0)
    assert federated_average(rows, weights) == pytest.approx(together / together.sum())


@given(clients(), hnp.arrays(np.float64, WORDS, elements=st.floats(0.01, 1)))
def test_averaged_deltas_are_averaged_distributions(found: tuple[Any, Any], base: Any) -> None:
    rows, weights = found
    before = base / base.sum()
    deltas = [distribution_delta(row, before) for row in rows]
    assert all(abs(delta.sum()) < 1e-9 for delta in deltas)
    assert averaged_deltas(before, deltas, weights) == pytest.approx(federated_average(rows, weights), abs=1e-12)


@given(
    hnp.arrays(np.float64, WORDS, elements=st.floats(0, 100)),
    hnp.arrays(np.float64, WORDS, elements=st.floats(-20, 20)),
)
def test_noised_counts_end_as_distributions(counts: Any, noise: Any) -> None:
    assume((counts + noise).sum() > 1e-3)
    ratio = noised_average(counts, noise)
    assert ratio.sum() == pytest.approx(1)
    for made in (clamped(ratio), nearest_distribution(ratio)):
        assert made.min() >= 0
        assert made.sum() == pytest.approx(1)
        assert (np.diff(made[np.argsort(ratio)]) >= -1e-9).all(), "the order of words stays"
    others = np.random.default_rng(0).dirichlet(np.ones(WORDS), 50)
    nearest = np.square(nearest_distribution(ratio) - ratio).sum()
    assert nearest <= np.square(others - ratio).sum(axis=1).min() + 1e-9


def test_a_distribution_stays_as_it_is() -> None:
    found = np.array([0.2, 0.0, 0.8])
    assert clamped(found) == pytest.approx(found)
    assert nearest_distribution(found) == pytest.approx(found)


def test_sampled_users() -> None:
    rng = np.random.default_rng(1)
    drawn = [sampled_users("abcdef", 3, rng) for _ in range(3000)]
    assert all(len(set(each)) == 3 and each == sorted(each) for each in drawn)
    share = np.mean(["c" in each for each in drawn])
    assert share == pytest.approx(0.5, abs=0.05)
    assert sampled_users("ab", 2, rng) == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: federated_average([[0.5, 0.4]], [1]), "distributions"),
        (lambda: federated_average([[1.5, -0.5]], [1]), "distributions"),
        (lambda: federated_average([[0.5, 0.5]], [1, 2]), "weights"),
        (lambda: federated_average([[0.5, 0.5]], [0]), "weights"),
        (lambda: federated_average([[0.5, 0.5]], [-1]), "weights"),
        (lambda: averaged_deltas([0.5, 0.5], [[np.nan, 0]], [1]), "deltas"),
        (lambda: distribution_delta([0.5, 0.5], [1.0]), "personal"),
        (lambda: noised_average([1, 1], [1]), "noise"),
        (lambda: laplace_noise(3, 0), "epsilon"),
        (lambda: clamped([-1, 0]), "values"),
        (lambda: sampled_users("ab", 3, np.random.default_rng()), "size"),
    ],
)
def test_arguments_outside_their_domain_are_named(call: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()
