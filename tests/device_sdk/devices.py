"""What tests of devices share: a key, quick settings, and a user who says something and tells what of it was right."""

from typing import Any

from device_sdk import Corrected, Device, DeviceSettings, LearningSettings
from device_sdk.feedback.signals import Signal
from tests.signals import noise

KEY = bytes(range(32))
LIGHT = Corrected("turn on the light")


def quick(**learning: Any) -> DeviceSettings:
    """One step an utterance."""
    return DeviceSettings(learning=LearningSettings(**{"passes": 1, "replays": 0, **learning}))


def tell(device: Device, seed: int = 1, signal: Signal = LIGHT, samples: int = 9_600) -> str:
    """The id of an utterance that got this feedback."""
    result = device.recognize(noise(samples, seed), 16_000)
    device.feedback(result, signal)
    return result.utterance_id
