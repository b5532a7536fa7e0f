"""Means of deltas: their sum, the weights of devices, those that agree; and sums of counts (equation 6)."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from device_sdk.wire.messages import FIXED_POINT
from server.aggregation import deltas as sums
from server.aggregation import robust
from server.aggregation.deltas import (
    DeltaSum,
    add,
    cost_shares,
    finish,
    fold,
    init,
    merge,
    report_weights,
    weighted_sum,
)
from server.aggregation.marginals import nearest_counts, nearest_distribution, smoothed, sum_counts, surviving_counts
from server.aggregation.robust import cosine_mean, cosine_weights

Reports = list[tuple[list[int], int]]
SHAPES = {"a": (3, 2), "b": (4,)}
# Small integers: float32 sums of them are exact, so the algebra can be tested for equality.
EXACT = st.lists(
    st.tuples(st.lists(st.integers(-64, 64), min_size=10, max_size=10), st.integers(1, 8)), min_size=1, max_size=8
)


def delta_of(values: Sequence[float] | NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    flat = np.asarray(values, np.float32)
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


@pytest.mark.parametrize("count", [1, sums.UPDATES - 1, sums.UPDATES, sums.UPDATES + 1, 100])
def test_weighted_mean_against_float64(count: int) -> None:
    rng = np.random.default_rng(count)
    deltas = rng.normal(size=(count, sums.BLOCK + 77)).astype(np.float32)
    weights = rng.integers(1, 20, count).astype(float)
    state = init({"w": (sums.BLOCK + 77,)})
    for delta, weight in zip(deltas, weights, strict=True):
        state = add(state, {"w": delta}, weight)
        assert len(state.waiting) < sums.UPDATES
    assert (state.reports, state.weight) == (count, weights.sum())
    expected = np.average(deltas.astype(np.float64), axis=0, weights=weights)
    assert np.linalg.norm(finish(state)["w"] - expected) / np.linalg.norm(expected) < 1e-6


def test_fixed_denominator_and_empty_sum() -> None:
    assert finish(add(init(SHAPES), delta_of([8] * 10), 1.0), 4.0)["b"].tolist() == [2.0] * 4
    assert not finish(init(SHAPES))["a"].any()


def test_a_delta_in_another_order_of_memory() -> None:
    total = np.zeros((4, 5), np.float32)
    weighted_sum(total, [np.arange(20, dtype=np.float32).reshape(5, 4).T], [2.0])
    assert np.array_equal(total, 2 * np.arange(20).reshape(5, 4).T)


def test_pairwise_sums_round_less_than_one_after_the_other() -> None:
    deltas = np.random.default_rng(0).uniform(0.5, 1.5, size=(512, 1000)).astype(np.float32)
    exact, plain, state = deltas.sum(axis=0, dtype=np.float64), np.zeros(1000, np.float32), init({"w": (1000,)})
    for delta in deltas:
        plain += delta
        state = add(state, {"w": delta}, 1.0)
    ours, theirs = (np.abs(total - exact).max() for total in (fold(state).sum["w"], plain))
    assert ours < theirs / 2


POSITIVE = st.lists(st.floats(0.01, 50.0), min_size=1, max_size=20)


@pytest.mark.parametrize("weighting", ["loss", "word_errors"])
def test_who_claims_to_err_least_is_not_the_mean(weighting: str) -> None:
    """One of twenty that says 0 where the others say 20."""
    claimed = [0.0, *np.linspace(20.0, 21.0, 19)]
    reports = [SimpleNamespace(loss=cost, word_error=cost) for cost in claimed]
    weights = report_weights(SimpleNamespace(weighting=weighting), reports)
    assert sum(weights) == pytest.approx(20) and weights[0] == weights[1] == weights[2] < 2
    assert report_weights(SimpleNamespace(weighting=weighting), reports[:1]) == [1.0]
    assert report_weights(SimpleNamespace(weighting=weighting), []) == []


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


def mean_of(rows: NDArray[np.float32], trimmed: float = 0.2) -> NDArray[np.float32]:
    found = cosine_mean(map(delta_of, rows), SHAPES, trimmed)
    assert {name: values.shape for name, values in found.items()} == SHAPES
    return np.concatenate([found["a"].reshape(-1), found["b"]])


def mean_of_those_that_agree(rows: NDArray[np.float64], dropped: int) -> NDArray[np.float64]:
    """Device by device, of rows that are scaled down to their median norm."""
    bound = float(np.median([np.linalg.norm(row) for row in rows]))
    left = list(range(len(rows)))
    units = [row / np.linalg.norm(row) for row in rows]
    for _ in range(dropped):
        sums = {one: sum(float(units[one] @ units[other]) for other in left if other != one) for one in left}
        lowest = min(left, key=sums.__getitem__)
        if sums[lowest] >= 0:
            break
        left.remove(lowest)
    return np.mean([rows[one] * min(1.0, bound / float(np.linalg.norm(rows[one]))) for one in left], axis=0)


@pytest.mark.parametrize("count", [1, 5, 10, 31])
@pytest.mark.parametrize("shared", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("block", [1, 400, 1 << 20])
def test_device_by_device(count: int, block: int, shared: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "BLOCK_BYTES", block)
    rows = np.random.default_rng(count).normal(shared, 1.0, size=(count, 10)).astype(np.float32)
    for share in (0.0, 0.2, 0.4):
        expected = mean_of_those_that_agree(rows.astype(np.float64), min(math.ceil(share * count), (count - 1) // 2))
        assert mean_of(rows, share) == pytest.approx(expected, abs=1e-6)


@given(st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_order_does_not_matter_and_bits_repeat(count: int, seed: int) -> None:
    rows = (rng := np.random.default_rng(seed)).normal(size=(count, 10)).astype(np.float32)
    assert np.array_equal(mean_of(rows), mean_of(rng.permutation(rows)))


@given(st.integers(5, 20), st.integers(0, 2**32 - 1), st.floats(-30.0, 30.0))
def test_less_than_half_cannot_make_it_longer_than_an_honest_delta(count: int, seed: int, power: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 10)).astype(np.float32)
    lying = (count - 1) // 2
    rows[:lying] *= np.float32(10.0**power)
    longest = np.linalg.norm(rows[lying:].astype(np.float64), axis=1).max()
    for share in (0.0, 0.2):
        assert np.linalg.norm(mean_of(rows, share)) <= longest * (1 + 1e-5)


def test_who_does_not_point_away_moves_the_mean_of_those_that_agree_by_its_share() -> None:
    honest = np.random.default_rng(4).normal(1.0, 0.1, size=(40, 10)).astype(np.float32)
    bound = np.linalg.norm(honest, axis=1).max()
    for attack in (np.full((10, 10), 3e38, np.float32), 30 * honest[:10], np.zeros((10, 10), np.float32)):
        assert np.linalg.norm(mean_of(np.concatenate([honest, attack])) - honest.mean(axis=0)) <= 0.2 * 2 * bound
    assert mean_of(np.concatenate([honest, -1e6 * honest[:10]])) == pytest.approx(mean_of(honest), abs=0.02)


@pytest.mark.parametrize("factor", [-1.0, -30.0])
@pytest.mark.parametrize("seed", range(5))
def test_who_flips_signs_is_dropped_though_honest_deltas_hardly_agree(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, 4000)) + 0.25 * rng.normal(size=4000)
    rows[:4] *= factor
    weights = cosine_weights(rows @ rows.T, 4)
    assert not weights[:4].any() and (weights[4:] > 0).all()


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert mean_of(np.ones((1, 10), np.float32)).all() and not list(tmp_path.rglob("*"))


def test_the_mean_of_none_and_of_those_that_all_agree() -> None:
    assert not mean_of(np.zeros((0, 10), np.float32)).any()
    row = np.linspace(-1e6, 1e6, 10, dtype=np.float32)
    assert mean_of(np.tile(row, (7, 1))) == pytest.approx(row, rel=1e-6)


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
    found = global_marginal(released, variance, np.arange(1, WORDS + 1) / np.arange(1, WORDS + 1).sum(), smoothing)
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
