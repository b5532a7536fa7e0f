"""What is given in the place of something else is named: the argument, what was found, what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_sdk import (
    Bundle,
    ConfigurationError,
    DecodingSettings,
    Device,
    DeviceSettings,
    FeedbackError,
    IdiolectError,
    LearningSettings,
    Profiles,
    Recognizer,
    Semantics,
    StateError,
)
from tests.signals import noise

KEY = bytes(range(32))


def test_a_path_is_a_bundle(tmp_path: Path, tiny_bundle: Bundle) -> None:
    heard = Recognizer(str(tiny_bundle.path)).recognize(noise(9_600, 1), 16_000).text
    with Device.open(tmp_path / "one", KEY, bundle=str(tiny_bundle.path)) as device:
        assert device.recognize(noise(9_600, 1), 16_000).text == heard
    with Profiles(tmp_path / "many", KEY, bundle=Path(tiny_bundle.path)) as profiles:
        assert profiles["ana"].model_version == tiny_bundle.version


OPEN: list[tuple[dict[str, Any], type[IdiolectError], str]] = [
    ({"bundle": 3}, ConfigurationError, r"bundle: found int, expected a Bundle, or its path"),
    ({"settings": {"learn": False}}, ConfigurationError, r"settings: found dict, expected DeviceSettings"),
    (
        {"settings": LearningSettings()},
        ConfigurationError,
        r"settings: found LearningSettings, expected DeviceSettings",
    ),
    ({"cost_function": 0.5}, ConfigurationError, r"cost_function: found float, expected a function"),
    ({"policy": "careful"}, ConfigurationError, r"policy: found str, expected a function"),
    ({"conditions": {}}, ConfigurationError, r"conditions: found dict, expected a function"),
    ({"rehearsal": "speech/"}, ConfigurationError, r"rehearsal: found str, expected a sequence of Transcribed"),
    ({"rehearsal": ["a.wav"]}, ConfigurationError, r"rehearsal\[0\]: found str, expected Transcribed"),
    ({"key": "secret"}, StateError, r"key: found str, expected at least 16 random bytes"),
]


@pytest.mark.parametrize("opening", [Device.open, Profiles], ids=["device", "profiles"])
@pytest.mark.parametrize(("given", "error", "message"), OPEN)
def test_opening_names_what_is_of_another_type(
    tmp_path: Path, tiny_bundle: Bundle, opening: Callable[..., Any], given: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        opening(tmp_path, **{"key": KEY, "bundle": tiny_bundle, **given})
    with Device.open(tmp_path, KEY, tiny_bundle):
        pass  # the folder was given back


def test_a_state_folder_is_a_path(tiny_bundle: Bundle) -> None:
    with pytest.raises(StateError, match=r"state_folder: found int, expected a path"):
        Device.open(3, KEY, tiny_bundle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda device: device.session(16_000, endpointing=1.2),
            ConfigurationError,
            r"endpointing: found float, expected",
        ),
        (lambda device: device.session(16_000, hotwords=3), ConfigurationError, r"hotwords: found int, expected"),
        (lambda device: device.feedback("an utterance", None), FeedbackError, r"signal: found NoneType"),
        (
            lambda device: device.feedback(3, Semantics({"a": "b"}, {"a": ("b",)})),
            FeedbackError,
            r"semantics\.lexicon: found dict, expected",
        ),
        (lambda device: device.learn("10"), ConfigurationError, r"budget_seconds: found str, expected a number"),
        (lambda device: device.learn(stop=3), ConfigurationError, r"stop: found int, expected"),
        (
            lambda device: Recognizer(None),
            ConfigurationError,
            r"bundle: found NoneType, expected a Bundle, or its path",
        ),
        (
            lambda device: Recognizer(device.base, DeviceSettings()),
            ConfigurationError,
            r"settings: found DeviceSettings, expected DecodingSettings",
        ),
        (
            lambda device: DeviceSettings(decoding=LearningSettings()),
            ConfigurationError,
            r"device\.decoding: found LearningSettings, expected DecodingSettings",
        ),
        (
            lambda device: DeviceSettings(learning=DecodingSettings()),
            ConfigurationError,
            r"device\.learning: found DecodingSettings, expected LearningSettings",
        ),
        (
            lambda device: DeviceSettings(memory_seconds="1 h"),
            ConfigurationError,
            r"device\.memory_seconds: found str, expected a number",
        ),
    ],
)
def test_calls_name_what_is_of_another_type(
    tmp_path: Path, tiny_bundle: Bundle, call: Callable[[Device], Any], error: type, message: str
) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device, pytest.raises(error, match=message):
        call(device)


def test_feedback_names_an_utterance_of_another_type(tmp_path: Path, tiny_bundle: Bundle) -> None:
    from device_sdk import Accepted

    with (
        Device.open(tmp_path, KEY, tiny_bundle) as device,
        pytest.raises(FeedbackError, match=r"utterance: found Hypothesis, expected a Result or its utterance_id"),
    ):
        device.feedback(device.recognize(noise(9_600, 1), 16_000).nbest[0], Accepted())  # type: ignore[arg-type]
