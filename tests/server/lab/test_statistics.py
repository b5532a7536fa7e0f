"""The paired bootstrap: right where the answer is known, paired, by group."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from device_sdk.errors import ConfigurationError
from server.lab.statistics import mean_interval, paired_bootstrap


def test_a_constant_improvement_has_no_width() -> None:
    words = np.arange(5, 25)
    result = paired_bootstrap(words * 0.4, words * 0.3, words, list(range(20)), samples=500)
    assert (result.rate_a, result.rate_b, result.groups) == (pytest.approx(0.4), pytest.approx(0.3), 20)
    for interval, value in ((result.absolute, -0.1), (result.relative, -0.25)):
        assert (interval.mean, interval.low, interval.high) == pytest.approx((value, value, value))
        assert interval.excludes_zero
    same = paired_bootstrap(words, words, words, list(range(20)))
    assert same.absolute.as_json() == {"mean": 0.0, "low": 0.0, "high": 0.0, "excludes_zero": False}


def test_agrees_with_scipy_where_utterances_are_groups() -> None:
    generator = np.random.default_rng(1)
    words = generator.integers(4, 12, 120)
    first, second = (generator.binomial(words, rate).astype(float) for rate in (0.3, 0.25))
    ours = paired_bootstrap(first, second, words, list(range(120)), seed=2)

    def rate(a: np.ndarray, b: np.ndarray, n: np.ndarray, axis: int = -1) -> np.ndarray:
        return (b.sum(axis) - a.sum(axis)) / n.sum(axis)

    theirs = stats.bootstrap(
        (first, second, words), rate, paired=True, method="percentile", n_resamples=10_000, rng=np.random.default_rng(3)
    ).confidence_interval
    assert ours.absolute.low == pytest.approx(theirs.low, abs=0.004)
    assert ours.absolute.high == pytest.approx(theirs.high, abs=0.004)


def test_speakers_that_differ_widen_the_interval() -> None:
    generator, speakers = np.random.default_rng(4), np.repeat(np.arange(8), 20)
    first, second = np.full(160, 5.0), 5.0 + generator.normal(0.0, 0.2, 8)[speakers] * 10
    by_speaker = paired_bootstrap(first, second, np.full(160, 10), speakers.tolist())
    by_utterance = paired_bootstrap(first, second, np.full(160, 10), list(range(160)))
    assert by_speaker.absolute.mean == pytest.approx(by_utterance.absolute.mean)
    width = by_speaker.absolute.high - by_speaker.absolute.low
    assert width > 2 * (by_utterance.absolute.high - by_utterance.absolute.low)


ROW = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.sampled_from("abc"))


@settings(deadline=None, max_examples=30)
@given(st.lists(ROW, min_size=1, max_size=30).filter(lambda rows: sum(row[0] for row in rows) > 0))
def test_interval_is_ordered_and_swapping_changes_the_sign(rows: list[tuple[int, int, int, str]]) -> None:
    first, second, sizes, groups = zip(*rows, strict=True)
    result = paired_bootstrap(first, second, sizes, groups, samples=200)
    assert result.absolute.low <= result.absolute.high and result.as_json()["groups"] == len(set(groups))
    if sum(second):
        swapped = paired_bootstrap(second, first, sizes, groups, samples=200)
        assert swapped.absolute.mean == pytest.approx(-result.absolute.mean)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([1], [1, 2], [1], ["a"]), "lengths"),
        (([1], [1], [1], []), "lengths"),
        (([], [], [], []), "nothing to compare"),
        (([1], [1], [0], ["a"]), "nothing to compare"),
        (([0], [1], [3], ["a"]), "makes no error"),
    ],
)
def test_what_cannot_be_compared_is_refused(rows: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        paired_bootstrap(*rows)


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=8).filter(lambda values: np.std(values) > 1e-6))
def test_the_interval_of_a_mean_agrees_with_scipy(values: list[float]) -> None:
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.excludes_zero == (low > 0 or high < 0)


def test_one_value_has_no_interval_and_none_is_an_error() -> None:
    assert mean_interval([0.1]) is None
    with pytest.raises(ConfigurationError, match="expected"):
        mean_interval([])
