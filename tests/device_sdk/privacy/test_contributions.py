from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import bounded_counts, l1_sensitivity
from device_sdk.wire.messages import MarginalPlan
from rescoring.marginals import surprise
from tests.device_sdk.devices import even


@pytest.mark.parametrize(
    ("pending", "plan", "expected"),
    [
        ([0.0, 0.5, 3.0], {"max_words": 2}, {1: 128, 2: 256}),
        ([0.2, 0.5, 3.0], {"max_words": 1}, {2: 256}),
        ([1.0, 1.0, 1.0], {"max_words": 2}, {0: 256, 1: 256}),
        ([0.003, 0.0, 0.0], {}, {}),
        ([5.0, 0.0, 1.25], {"max_weight": 4.0}, {0: 1024, 2: 320}),
        ([0.0, 0.0], {}, {}),
    ],
)
def test_bounds_table(pending: list[float], plan: dict[str, Any], expected: dict[int, int]) -> None:
    assert bounded_counts(np.array(pending), even(len(pending)), MarginalPlan(**plan)) == expected


def test_what_surprises_is_reported_first() -> None:
    """ "the" is said most, and as often as everybody says it; "mocha" is said twice in place of one in a thousand."""
    background = np.array([0.001, 0.9, 0.001, 0.098])
    pending = np.array([0.0, 30.0, 2.0, 3.0])
    assert bounded_counts(pending, background, MarginalPlan(max_words=1)) == {2: 256}
    by_hand = {2: 8.1, 3: -0.4, 1: -1.5}
    assert surprise(pending, background) == pytest.approx([by_hand.get(word, 0.0) for word in range(4)], abs=0.05)
    assert bounded_counts(pending, background, MarginalPlan(max_words=2)) == {2: 256, 3: 256}


@given(hnp.arrays(np.float64, 40, elements=st.floats(0, 1e6)), st.integers(1, 50), st.floats(0.01, 8, exclude_min=True))
def test_no_device_can_add_more_than_the_sensitivity(pending: Any, max_words: int, max_weight: float) -> None:
    plan = MarginalPlan(max_words=max_words, max_weight=max_weight)
    counts = bounded_counts(pending, even(40), plan)
    assert len(counts) <= max_words and sum(counts.values()) <= l1_sensitivity(plan)
    assert all(0 < units <= max_weight * 256 for units in counts.values())


@pytest.mark.parametrize("pending", [[-1.0], [np.nan], [np.inf], [[1.0]]])
def test_impossible_counts_are_refused(pending: Any) -> None:
    with pytest.raises(PrivacyError, match="pending counts"):
        bounded_counts(np.array(pending), even(1), MarginalPlan())
