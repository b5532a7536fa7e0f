"""Phrases are spotted where, of all places and alignments, they are least behind what the head heard."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk.decoding import spotting
from device_sdk.decoding.spotting import FAR, MOST, Spot, likely, spot

Float = NDArray[np.float32]


def heard(*frames: tuple[float, ...]) -> Float:
    return np.log(np.array(frames, np.float32))


CLEAR = heard((0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
"""Blank, phone 1, blank, phone 1, phone 2."""


@pytest.mark.parametrize(
    ("phones", "eighths", "begin", "end"),
    [
        ([1, 2], 0, 3, 5),
        ([1, 1], 0, 1, 4),
        ([1, 1, 2], 0, 1, 5),
        ([2], 0, 4, 5),
        ([2, 1], 1, 0, 2),  # 2 for the first blank; later, in place of the second one, it costs as much
        ([2, 1, 2], 1, 2, 5),
    ],
)
def test_by_hand(phones: list[int], eighths: int, begin: int, end: int) -> None:
    (found,) = spot(CLEAR, [phones])
    assert found.score == pytest.approx(-eighths * np.log(8), abs=1e-6)
    assert (found.begin, found.end) == (begin, end)


def test_no_room() -> None:
    assert [each.score for each in spot(CLEAR[:2], [[1, 1], [1, 2, 1], [1, 2]])] == pytest.approx(
        [-np.inf, -np.inf, -2 * np.log(8)]
    )


def enumerated(log_probs: Float, phones: list[int], begin: int, end: int) -> float:
    """The best alignment of a phrase with these frames, whose first and last belong to its first and last phone."""
    best, behind = -np.inf, log_probs - log_probs.max(1, keepdims=True)
    for path in product(range(log_probs.shape[1]), repeat=end - begin):
        collapsed = [one for one, before in zip(path, (0, *path[:-1]), strict=True) if one and one != before]
        if collapsed == phones and path[0] and path[-1]:
            best = max(best, float(behind[np.arange(begin, end), path].sum()))
    return best


@given(st.integers(0, 2**32 - 1), st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_best_of_all_places(seed: int, phrases: list[list[int]]) -> None:
    log_probs = np.log(np.random.default_rng(seed).dirichlet([0.5] * 3, 5)).astype(np.float32)
    log_probs = np.maximum(log_probs, -50.0)
    for phones, found in zip(phrases, spot(log_probs, phrases), strict=True):
        places = [(i, j) for i in range(5) for j in range(i + 1, 6)]
        best = max(enumerated(log_probs, phones, *place) for place in places)
        assert found.score == pytest.approx(best, abs=1e-4)
        if np.isfinite(best):
            assert enumerated(log_probs, phones, found.begin, found.end) == pytest.approx(best, abs=1e-4)


def test_what_may_have_been_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least behind for each phone first; what is far behind, has no phones or no room is not; nor is anything in
    an utterance without frames."""
    phrases = [[2, 2], [], [1, 2], [2, 1], [1] * 9]
    assert [number for number, _ in likely(CLEAR, phrases)] == [2, 3, 0]
    assert 1.0 < np.log(8) < FAR < 10.0
    assert likely(np.minimum(10 * CLEAR, 0.0), phrases[:1]) == [], "20 nats for each phone"
    assert likely(CLEAR[:0], phrases) == likely(CLEAR, []) == likely(CLEAR, [[]]) == []
    assert len(likely(CLEAR, [[1, 2]] * 20)) == MOST
    monkeypatch.setattr(spotting, "MOST", 1)
    assert likely(CLEAR, phrases) == [(2, Spot(0.0, 3, 5))]
