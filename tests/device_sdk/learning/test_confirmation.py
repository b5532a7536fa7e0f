"""How far one utterance moves the weights, by what feedback says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk import Accepted, Bundle, Cancelled, Corrected, Device, DeviceSettings, LearningSettings, Rating
from device_sdk.errors import ConfigurationError
from device_sdk.feedback.signals import Signal
from device_sdk.learning import MaskSettings, StepSettings
from device_sdk.learning.delta import difference
from device_sdk.learning.step import global_norm
from tests.signals import noise

LEARNING = LearningSettings(passes=1, step=StepSettings(1e-3, clip_norm=1e6), masks=MaskSettings(0, 0, 0, 0))


def moved(folder: Path, bundle: Bundle, signal: Signal | None, confirmation: float) -> float:
    learning = replace(LEARNING, confirmation=confirmation)
    with Device.open(folder, bytes(32), bundle, DeviceSettings(learning=learning)) as device:
        before, result = device.student.weights, device.recognize(noise(9600, 3), 16_000)
        device.feedback(result, Corrected(result.text) if signal is None else signal)
        assert device.learn().steps == 1
        return global_norm(difference(device.student.weights, before))


@pytest.mark.parametrize(
    ("signal", "share"),
    [
        (Accepted(), 0.1),
        (Rating(1.0), 0.1),
        (None, 0.1),  # corrected to what it was heard as
        (Corrected("turn on the light"), 1.0),
        (Rating(0.8), 1.0),
    ],
)
def test_what_was_served_right_moves_little(
    tmp_path: Path, tiny_bundle: Bundle, signal: Signal | None, share: float
) -> None:
    whole = moved(tmp_path / "whole", tiny_bundle, signal, 1.0)
    assert whole > 0.0
    assert moved(tmp_path / "share", tiny_bundle, signal, 0.1) == pytest.approx(share * whole, rel=0.01)


@pytest.mark.parametrize(
    ("passes", "signal", "steps"),
    [
        (None, Corrected("turn on the light"), 4),
        (None, Accepted(), 2),
        (None, None, 2),  # corrected to what it was heard as
        (None, Cancelled(), 2),
        (1, Corrected("turn on the light"), 1),
        (3, Accepted(), 3),
    ],
)
def test_what_had_to_be_corrected_is_gone_over_more_often(
    tmp_path: Path, tiny_bundle: Bundle, passes: int | None, signal: Signal | None, steps: int
) -> None:
    settings = DeviceSettings(learning=LearningSettings(passes=passes))
    with Device.open(tmp_path, bytes(32), tiny_bundle, settings) as device:
        result = device.recognize(noise(9600, 3), 16_000)
        device.feedback(result, Corrected(result.text) if signal is None else signal)
        assert device.learn().steps == steps


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_impossible_shares_are_named(share: float) -> None:
    with pytest.raises(ConfigurationError, match=r"learning\.confirmation"):
        LearningSettings(confirmation=share)
