from __future__ import annotations

import math
from typing import Any

import pytest

from rescoring.combination import CombinationWeights, combine

WEIGHTS = CombinationWeights(language_model=0.5, ngram_share=0.25, word_bonus=0.1, unlisted_bonus=-0.2)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"neural": -8.0, "ngram": -4.0}, -10 + 0.5 * (0.75 * -8 + 0.25 * -4) + 0.3),
        ({"neural": -8.0, "ngram": -4.0, "personal": 2.0, "hotword": 1.0}, -10 + 0.5 * (0.75 * -6 + 0.25 * -4) + 1.3),
        ({"neural": -8.0, "personal": 2.0}, -10 + 0.5 * -6 + 0.3),
        ({"neural": -8.0, "unlisted": 2}, -10 + 0.5 * -8 + 0.3 - 0.4),
        ({"ngram": -4.0, "personal": 2.0}, -10 + 0.5 * -2 + 0.3),
        ({"personal": 2.0}, -10 + 0.5 * 2 + 0.3),
        ({}, -10 + 0.3),
    ],
)
def test_combination_table(parts: dict[str, float], expected: float) -> None:
    assert combine(WEIGHTS, acoustic=-10.0, words=3, **parts) == pytest.approx(expected)


def test_mapping_round_trip() -> None:
    assert CombinationWeights.from_mapping(WEIGHTS.to_mapping()) == WEIGHTS
    assert CombinationWeights.from_mapping({"marginal": 1.0}).marginal == 1.0
    with pytest.raises(ValueError, match=r"combination\.lambda: unknown"):
        CombinationWeights.from_mapping({"lambda": 1.0})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"language_model": -1}, "language_model"),
        ({"ngram_share": 1.5}, "ngram_share"),
        ({"marginal": math.nan}, "marginal"),
        ({"alpha": 0.8, "beta": 0.3}, "alpha"),
        ({"sigma": 0}, "sigma"),
        ({"word_bonus": "x"}, "word_bonus"),
        ({"beta": True}, "beta"),
        ({"refresh": "hourly"}, "refresh"),
        ({"posterior_scale": None}, "posterior_scale"),
    ],
)
def test_bad_weights_name_the_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        CombinationWeights(**values)
