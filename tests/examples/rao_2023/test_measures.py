from __future__ import annotations

import numpy as np
import pytest

from examples.rao_2023.domains import Sentence
from examples.rao_2023.measures import errors, newly_frequent, says_any
from examples.rao_2023.speech import Clip

BEFORE = ["a b"] * 40 + ["c d"] * 10
NOW = ["c d"] * 40 + ["a b"] * 10 + ["e f"] * 2


@pytest.mark.parametrize(
    ("factor", "least", "expected"),
    [
        (3.0, 3, {("c",), ("d",), ("c", "d")}),
        (5.0, 3, set()),
        (3.0, 1, {("c",), ("d",), ("c", "d"), ("e",), ("f",), ("e", "f")}),
    ],
)
def test_newly_frequent_ngrams(factor: float, least: int, expected: set[tuple[str, ...]]) -> None:
    assert newly_frequent(BEFORE, NOW, factor, 3, least) == expected


@pytest.mark.parametrize(("text", "said"), [("x c d", True), ("c", False), ("d c", False), ("", False), ("c d", True)])
def test_says_any(text: str, said: bool) -> None:
    assert says_any(text, frozenset({("c", "d")})) is said


def test_errors_are_counted_clip_by_clip() -> None:
    nothing = np.zeros((3, 64), np.float16)
    clips = [Clip(nothing, Sentence("play some jazz"), "p"), Clip(nothing, Sentence("stop"), "q")]
    found = errors(clips, ["play jazz", "stop it"])
    assert (found.wrong.tolist(), found.words.tolist(), found.persons) == ([1, 1], [3, 1], ("p", "q"))
    assert found.rate == 0.5
    assert found.where([False, True]).rate == 1.0
    assert np.isnan(found.where([False, False]).rate)
