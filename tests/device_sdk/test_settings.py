"""Settings outside their domain are refused by name."""

import math

import pytest

from device_sdk import ConfigurationError, DecodingSettings, DeviceSettings, GuardSettings, LearningSettings
from device_sdk.feedback import RepetitionSettings
from device_sdk.learning import MaskSettings, StepSettings, TeacherSettings
from device_sdk.learning.guard import DivergenceSettings
from device_sdk.learning.settings import RehearsalSettings

IMPOSSIBLE = [
    (DeviceSettings, "device", {"memory_utterances": 0, "memory_seconds": 0.0, "threads": 0, "precision": "int4"}),
    (DeviceSettings, "device", {"keep_heard": True, "memory_seconds": "1 h", "decoding": LearningSettings()}),
    (DeviceSettings, "device", {"learning": DecodingSettings()}),
    (LearningSettings, "learning", {"label_weight": -1.0, "supervision_weight": -1.0, "passes": 0, "hypotheses": 0}),
    (LearningSettings, "learning", {"baseline": math.nan, "baseline_decay": 1.5, "rank": 0, "subset": "lowest"}),
    (LearningSettings, "learning", {"serving": "first", "labels": "none", "confirmation": 0.0, "keep": 1.5}),
    (StepSettings, "step", {"learning_rate": 0.0, "clip_norm": math.inf}),
    (TeacherSettings, "teacher", {"decay": 1.5, "interval": 0, "confidence": -0.1, "schedule": "never"}),
    (MaskSettings, "masks", {"time_masks": -1, "time_share": 2.0}),
    (RehearsalSettings, "rehearsal", {"every": 0, "weight": -1.0}),
    (GuardSettings, "guard", {"withhold": -1, "capacity": 0, "interval": 0, "drift": 1.1, "tolerance": -0.1}),
    (GuardSettings, "guard", {"bet": 0.0, "doubt": 1.0}),
    (DivergenceSettings, "divergence", {"window": 0, "length": 1.0, "likelihood": math.nan}),
    (RepetitionSettings, "repetition", {"similarity": -0.1, "seconds": math.inf, "texts": 0}),
]


@pytest.mark.parametrize(
    ("make", "place", "name", "value"),
    [(make, place, name, value) for make, place, given in IMPOSSIBLE for name, value in given.items()],
)
def test_what_is_impossible_is_named(make, place: str, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{place}\.{name}: found {value if value is True else ''}"):
        make(**{name: value})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GuardSettings(bet=0.9, drift=0.25), r"guard\.bet: found 0.9, expected a number in \(0, 0.8\)"),
        (lambda: DeviceSettings(precision="int4"), "found 'int4', expected one of 'float32', 'int8', 'auto'"),
        (lambda: DeviceSettings(keep_heard=True), "keep_heard: found True without keep_corrected"),
        (lambda: DeviceSettings(learning=DecodingSettings()), "found DecodingSettings, expected LearningSettings"),
    ],
)
def test_what_was_expected_is_said(make, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
