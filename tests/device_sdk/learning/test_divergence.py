"""Divergence of self-learning, from readings alone."""

from __future__ import annotations

import math

import pytest

from device_sdk.errors import ConfigurationError
from device_sdk.learning.guard import DivergenceSettings, Reading, divergence

FINE = Reading(10, 10, 0.5)
SETTINGS = DivergenceSettings(window=4)


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([], False),
        ([FINE] * 4, False),
        ([Reading(2, 10, -5.0)] * 3, False),
        ([Reading(2, 10, -5.0)] * 4, True),
        ([Reading(0, 10, -5.0)] * 4, True),
        ([Reading(30, 10, -5.0)] * 4, True),
        ([Reading(2, 10, 5.0)] * 4, False),  # shorter, and more likely
        ([Reading(10, 10, -50.0)] * 4, False),  # other words, as many
        ([Reading(2, 10, -math.inf), FINE, FINE, Reading(2, 10, -1.0)], True),
        ([Reading(2, 10, -5.0)] * 9 + [FINE] * 4, False),
        ([FINE] * 9 + [Reading(2, 10, -5.0)] * 4, True),
        ([Reading(0, 0, 0.0)] * 4, False),  # nobody spoke
    ],
)
def test_a_table_of_readings(readings, found: bool) -> None:
    why = divergence(readings, SETTINGS)
    assert (why is not None) is found
    if why is not None:
        assert why.startswith("labels drift: over 4 utterances")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 0}, "divergence.window: found 0"),
        ({"length": 1.0}, "divergence.length: found 1.0"),
        ({"likelihood": -0.1}, "divergence.likelihood"),
        ({"likelihood": math.nan}, "divergence.likelihood"),
    ],
)
def test_impossible_settings(change, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        DivergenceSettings(**change)
