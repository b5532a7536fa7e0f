"""What is given in the place of something else is named: the argument, what was found, what was expected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_sdk import Bundle, Device, DeviceSettings, LearningSettings, Profiles, Recognizer, Semantics
from device_sdk.errors import ConfigurationError, FeedbackError, IdiolectError, StateError
from device_sdk.hypothesis import Hypothesis, Scores
from device_sdk.personalization.rescorer import Rescorer
from tests.device_sdk.devices import KEY
from tests.signals import noise


def test_a_path_is_a_bundle(tmp_path: Path, tiny_bundle: Bundle) -> None:
    second_pass = Rescorer(tiny_bundle).rescore
    heard = Recognizer(str(tiny_bundle.path), rescore=second_pass).recognize(noise(9_600, 1), 16_000).text
    with Device.open(tmp_path / "one", KEY, bundle=str(tiny_bundle.path)) as device:
        assert device.recognize(noise(9_600, 1), 16_000).text == heard
    with Profiles(tmp_path / "many", KEY, bundle=Path(tiny_bundle.path)) as profiles:
        assert profiles["ana"].model_version == tiny_bundle.version


REFUSED = ConfigurationError
OPEN: list[tuple[dict[str, Any], type[IdiolectError], str]] = [
    ({"bundle": 3}, REFUSED, r"bundle: found int, expected a Bundle, or its path"),
    ({"settings": {"learn": False}}, REFUSED, r"settings: found dict, expected DeviceSettings"),
    ({"settings": LearningSettings()}, REFUSED, r"settings: found LearningSettings, expected DeviceSettings"),
    ({"cost_function": 0.5}, REFUSED, r"cost_function: found float, expected a function"),
    ({"policy": "careful"}, REFUSED, r"policy: found str, expected a function"),
    ({"conditions": {}}, REFUSED, r"conditions: found dict, expected a function"),
    ({"rehearsal": "speech/"}, REFUSED, r"rehearsal: found str, expected a sequence of Transcribed"),
    ({"rehearsal": ["a.wav"]}, REFUSED, r"rehearsal\[0\]: found str, expected Transcribed"),
    ({"key": "secret"}, StateError, r"key: found str, expected at least 16 random bytes"),
    ({"key": b"secret"}, StateError, r"key: found 6 bytes, expected at least 16 random bytes"),
    ({"state_folder": 3}, StateError, r"state_folder: found int, expected a path"),
]


@pytest.mark.parametrize("opening", [Device.open, Profiles], ids=["device", "profiles"])
@pytest.mark.parametrize(("given", "error", "message"), OPEN)
def test_opening_names_what_is_of_another_type(tmp_path, tiny_bundle, opening, given, error, message) -> None:
    with pytest.raises(error, match=message):
        opening(**{"state_folder": tmp_path, "key": KEY, "bundle": tiny_bundle, **given})
    Device.open(tmp_path, KEY, tiny_bundle).close()  # the folder was given back


HYPOTHESIS = Hypothesis((1,), "a text", (), Scores(0.0), 0.0)
CALLS: list[tuple[Callable[[Device], Any], type[IdiolectError], str]] = [
    (lambda device: device.session(16_000, endpointing=1.2), REFUSED, r"endpointing: found float, expected"),
    (lambda device: device.session(16_000, hotwords=3), REFUSED, r"hotwords: found int, expected"),
    (lambda device: device.feedback("an utterance", None), FeedbackError, r"signal: found NoneType"),
    (lambda device: device.feedback(HYPOTHESIS, None), FeedbackError, r"utterance: found Hypothesis, expected a"),
    (lambda device: Semantics({"a": "b"}, {"a": ("b",)}), FeedbackError, r"semantics\.lexicon: found dict, expected"),
    (lambda device: device.learn("10"), REFUSED, r"budget_seconds: found str, expected a number"),
    (lambda device: device.learn(stop=3), REFUSED, r"stop: found int, expected"),
    (lambda device: Recognizer(None), REFUSED, r"bundle: found NoneType, expected a Bundle, or its path"),
    (
        lambda device: Recognizer(device.base, DeviceSettings()),
        REFUSED,
        r"settings: found DeviceSettings, expected Decod",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_calls_name_what_is_of_another_type(tmp_path: Path, tiny_bundle: Bundle, call, error, message) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device, pytest.raises(error, match=message):
        call(device)
