"""The algebra of the delta sum against float64 references, and the weights of devices in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.aggregation.deltas import (
    BLOCK,
    UPDATES,
    DeltaSum,
    add,
    cost_shares,
    finish,
    fold,
    init,
    merge,
    weighted_sum,
)

Reports = list[tuple[list[int], int]]
SHAPES = {"a": (3, 2), "b": (4,)}
# Small integers: float32 sums of them are exact, so the algebra can be tested for equality.
EXACT = st.lists(
    st.tuples(st.lists(st.integers(-64, 64), min_size=10, max_size=10), st.integers(1, 8)), min_size=1, max_size=8
)


def delta_of(values: list[int]) -> dict[str, NDArray[np.float32]]:
    flat = np.array(values, np.float32)
    return {"a": flat[:6].reshape(3, 2), "b": flat[6:]}


def folded(reports: Reports) -> DeltaSum:
    state = init(SHAPES)
    for values, weight in reports:
        state = add(state, delta_of(values), float(weight))
    return fold(state)


def same(left: DeltaSum, right: DeltaSum) -> bool:
    equal = all(np.array_equal(left.sum[name], right.sum[name]) for name in SHAPES)
    return equal and (left.weight, left.reports) == (right.weight, right.reports)


@given(EXACT, EXACT, EXACT)
def test_merge_is_associative_and_agrees_with_one_fold(first: Reports, second: Reports, third: Reports) -> None:
    left = merge(merge(folded(first), folded(second)), folded(third))
    assert same(left, merge(folded(first), merge(folded(second), folded(third))))
    assert same(left, folded([*first, *second, *third]))
    for pair in ((folded(first), init(SHAPES)), (init(SHAPES), folded(first))):
        assert same(merge(*pair), folded(first))


@pytest.mark.parametrize("count", [1, UPDATES - 1, UPDATES, UPDATES + 1, 100])
def test_weighted_mean_against_float64(count: int) -> None:
    rng = np.random.default_rng(count)
    deltas = rng.normal(size=(count, BLOCK + 77)).astype(np.float32)
    weights = rng.integers(1, 20, count).astype(float)
    state = init({"w": (BLOCK + 77,)})
    for delta, weight in zip(deltas, weights, strict=True):
        state = add(state, {"w": delta}, weight)
        assert len(state.waiting) < UPDATES
    assert (state.reports, state.weight) == (count, weights.sum())
    expected = np.average(deltas.astype(np.float64), axis=0, weights=weights)
    error = np.linalg.norm(finish(state)["w"] - expected) / np.linalg.norm(expected)
    assert error < 1e-6


def test_fixed_denominator_and_empty_sum() -> None:
    state = add(init(SHAPES), delta_of([8] * 10), 1.0)
    assert finish(state, 4.0)["b"].tolist() == [2.0] * 4
    assert not finish(init(SHAPES))["a"].any()


def test_a_delta_in_another_order_of_memory() -> None:
    total = np.zeros((4, 5), np.float32)
    weighted_sum(total, [np.arange(20, dtype=np.float32).reshape(5, 4).T], [2.0])
    assert np.array_equal(total, 2 * np.arange(20).reshape(5, 4).T)


def test_pairwise_sums_round_less_than_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    deltas = rng.uniform(0.5, 1.5, size=(512, 1000)).astype(np.float32)
    exact, plain, state = deltas.sum(axis=0, dtype=np.float64), np.zeros(1000, np.float32), init({"w": (1000,)})
    for delta in deltas:
        plain += delta
        state = add(state, {"w": delta}, 1.0)
    ours, theirs = (np.abs(total - exact).max() for total in (fold(state).sum["w"], plain))
    assert ours < theirs / 2


POSITIVE = st.lists(st.floats(0.01, 50.0), min_size=1, max_size=20)


def test_weights_by_hand() -> None:
    """Equations 9 and 10 of Gao et al. 2022: losses a nat apart, word errors of none and all."""
    for costs in ([1.0, 2.0], [0.0, 1.0]):
        assert cost_shares(costs) == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)])
    assert cost_shares([]).size == 0
    assert cost_shares([2000.0, 2000.0]).tolist() == [0.5, 0.5], "far from zero, where exp underflows"


@given(POSITIVE, st.randoms(use_true_random=False))
def test_weights_sum_to_one_follow_their_device_and_fall_with_its_cost(values: list[float], random: Any) -> None:
    alpha, places = cost_shares(values), random.sample(range(len(values)), len(values))
    assert alpha.sum() == pytest.approx(1.0) and (alpha > 0).all()
    assert cost_shares([values[place] for place in places]) == pytest.approx(alpha[places])
    assert (np.diff(cost_shares(sorted(values))) <= 1e-15).all()
