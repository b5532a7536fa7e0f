from __future__ import annotations

from dataclasses import replace

import pytest

from device_sdk.errors import ConfigurationError
from server.lab.evaluation import Evaluation, differences
from server.lab.evaluation.scores import Score


def scores(errors: list[int], speakers: int, slots: int | None = None) -> Evaluation:
    return Evaluation(
        tuple(
            Score(f"u{place}", f"s{place % speakers}", "", 10, found, {1: found}, slots, slots and found, 1.0, 0.1)
            for place, found in enumerate(errors)
        )
    )


def test_rates_differ_by_what_was_counted() -> None:
    found = differences(scores([2, 2, 3, 1, 2, 2], 6), scores([1, 1, 1, 1, 1, 1], 6))
    assert found is not None
    assert (found.rate_a, found.rate_b, found.groups) == (0.2, 0.1, 6)
    assert found.absolute.excludes_zero


def test_speakers_are_resampled_unless_they_are_few() -> None:
    many = differences(scores([1] * 12, 6), scores([0] * 12, 6))
    few = differences(scores([1] * 12, 2), scores([0] * 12, 2))
    assert many is not None and few is not None
    assert (many.groups, few.groups) == (6, 12)


def test_slots_and_what_cannot_be_compared() -> None:
    assert differences(scores([1, 1], 2), scores([0, 1], 2), "slots") is None
    with_slots = differences(scores([1, 1], 2, slots=2), scores([0, 1], 2, slots=2), "slots")
    assert with_slots is not None and with_slots.rate_b == 0.25
    assert differences(scores([0, 0], 2), scores([1, 0], 2)) is None
    other = Evaluation(tuple(replace(row, id="other") for row in scores([1], 1).scores))
    with pytest.raises(ConfigurationError, match="same corpus"):
        differences(scores([1], 1), other)
