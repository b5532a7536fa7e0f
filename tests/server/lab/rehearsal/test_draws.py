"""Draws are a function of seed and round, and go through everything before anything comes again."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from server.lab.rehearsal import draw

SMALL = st.integers(1, 9)


@given(st.integers(1, 40), SMALL, SMALL, st.integers(1, 12), st.integers(0, 5))
def test_every_utterance_as_often_as_any_other(utterances: int, shares: int, size: int, rounds: int, seed: int) -> None:
    drawn = [draw(utterances, shares, size, number, seed) for number in range(1, rounds + 1)]
    assert drawn == [draw(utterances, shares, size, number, seed) for number in range(1, rounds + 1)]
    assert all([len(share) for share in round_] == [size] * shares for round_ in drawn)
    counts = Counter(chain.from_iterable(chain.from_iterable(drawn)))
    assert set(counts) <= set(range(utterances))
    often = [counts[index] for index in range(utterances)]
    assert max(often) - min(often) <= 1
    whole = list(chain.from_iterable(chain.from_iterable(drawn)))
    for start in range(0, len(whole) - utterances + 1, utterances):
        assert len(set(whole[start : start + utterances])) == utterances


def test_seeds_differ() -> None:
    assert draw(100, 4, 8, 1, seed=0) != draw(100, 4, 8, 1, seed=1)


@pytest.mark.parametrize("arguments", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_nothing_to_draw(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigurationError, match="expected 1 or more"):
        draw(*arguments, seed=0)
