"""Equations 8 to 10 of Gao et al. 2022 by hand, and what every weighting has in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.aggregation.deltas import by_loss, by_word_error

POSITIVE = st.lists(st.floats(0.01, 50.0), min_size=1, max_size=20)
WAYS = [by_loss, by_word_error]


def test_by_hand() -> None:
    assert by_loss([1.0, 2.0]) == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)])
    assert by_word_error([0.0, 1.0]) == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)])
    assert by_loss([]).size == 0


@pytest.mark.parametrize("way", WAYS)
@given(values=POSITIVE, order=st.randoms(use_true_random=False))
def test_weights_sum_to_one_and_follow_their_device(
    way: Callable[[Sequence[float]], np.ndarray], values: list[float], order: object
) -> None:
    alpha = way(values)
    assert alpha.sum() == pytest.approx(1.0)
    assert (alpha > 0).all()
    places = list(range(len(values)))
    order.shuffle(places)  # type: ignore[attr-defined]
    assert way([values[place] for place in places]) == pytest.approx([alpha[place] for place in places])


@given(POSITIVE)
def test_less_error_never_counts_less(values: list[float]) -> None:
    ranked = sorted(values)
    for way in (by_loss, by_word_error):
        assert (np.diff(way(ranked)) <= 1e-15).all()


def test_losses_far_from_zero_do_not_underflow() -> None:
    assert by_loss([2000.0, 2000.0]).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: by_loss([1.0, math.nan]), r"losses\[1\]: found nan"),
        (lambda: by_word_error([-0.1]), r"word_errors\[0\]: found -0.1"),
    ],
)
def test_what_is_no_report(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
