"""Whatever drops out and whenever: the exact sum of the survivors, or nothing."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.secure_aggregation import keys
from device_sdk.wire.secure_aggregation import Stage
from tests.server.rounds.secure_aggregation.members import ANSWERED
from tests.server.rounds.secure_aggregation.rounds import added, names, simulate

MOST_DROPPED = 0.33


def drawn_vectors(rng: np.random.Generator, count: int, words: int) -> dict[str, NDArray[np.int64]]:
    """Counts as noised counts are: of either sign, a few as large as a sum can hold."""
    most = ((1 << 31) - 1) // count
    vectors = rng.integers(-500, 500, (count, words))
    vectors[rng.random((count, words)) < 0.01] = most
    vectors[rng.random((count, words)) < 0.01] = -most
    return dict(zip(names(count), vectors, strict=True))


def drawn_drops(rng: np.random.Generator, count: int) -> dict[str, Stage]:
    """At some of the four stages a share of the devices between 0 and 33 % of those left falls silent."""
    left, drops = names(count), dict[str, Stage]()
    for stage in ANSWERED:
        rate = rng.uniform(0, MOST_DROPPED) * (rng.random() < 0.5)
        gone = rng.choice(left, size=round(rate * len(left)), replace=False).tolist()
        drops |= dict.fromkeys(gone, stage)
        left = [name for name in left if name not in drops]
    return drops


def check_round(seed: int, count: int, words: int) -> str:
    """One simulated round against plain addition. Returns ``exact``, or the stage at which it was given up."""
    rng = np.random.default_rng(seed)
    vectors, drops = drawn_vectors(rng, count, words), drawn_drops(rng, count)
    outcome = simulate(vectors, drops)
    threshold = -(-2 * count // 3)
    lost, left = None, count
    for stage in ANSWERED:
        left -= sum(dropped == stage for dropped in drops.values())
        if left < threshold and lost is None:
            lost = stage
    if lost is not None:
        assert outcome.sum is None, f"seed {seed}: a sum with too few at {lost}"
        assert outcome.note.startswith(f"{lost}: found answers of"), outcome.note
        return lost
    survivors = [name for name in vectors if drops.get(name) not in ("shares", "masked")]
    assert outcome.sum is not None, f"seed {seed}: {outcome.note}"
    assert list(outcome.group.survivors) == survivors
    np.testing.assert_array_equal(outcome.sum, added(vectors, survivors))
    return "exact"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 12])
def test_rounds_are_exact_or_abandoned(count: int) -> None:
    ends = Counter(check_round(seed, count, 20) for seed in range(4))
    assert ends.total() == 4


@pytest.mark.slow
def test_a_thousand_rounds_of_fifty_devices() -> None:
    many = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(many, get_context("spawn"), initializer=remember_signatures) as pool:
        ends = Counter(pool.map(_fifty, range(1000), chunksize=10))
    print(dict(ends))
    assert ends.total() == 1000
    assert ends["exact"] >= 300, "the rounds are to try both ends"
    assert all(ends[stage] >= 10 for stage in ANSWERED[1:]), ends


def _fifty(seed: int) -> str:
    return check_round(seed, 50, 200)


def remember_signatures() -> None:
    """In one process fifty devices check the same signatures: once is enough."""
    keys.signed_by = lru_cache(4096)(keys.signed_by)
