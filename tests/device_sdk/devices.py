"""What tests of devices share: a key, quick settings, and a user who says something and tells what of it was right."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk import Corrected, Device, DeviceSettings, LearningSettings
from device_sdk.feedback.signals import Signal
from device_sdk.hypothesis import Hypothesis, Scores
from device_sdk.learning.settings import StepSettings
from tests.signals import noise

KEY = bytes(range(32))
LIGHT = Corrected("turn on the light")


def quick(**learning: Any) -> DeviceSettings:
    """One short step an utterance, whatever its user says of noise: no correction of it is what was said."""
    usual: dict[str, Any] = {"passes": 1, "replays": 0, "rewrite_nats": 1e6, "step": StepSettings(learning_rate=0.1)}
    return DeviceSettings(learning=LearningSettings(**{**usual, **learning}))


def personal(device: Device, text: str = "light") -> float:
    """What a text's score has of the user's own words (nats)."""
    (found,) = device._rescore([Hypothesis((), text, (), Scores(-1.0), -1.0)])
    return found.scores.personal


def tell(device: Device, seed: int = 1, signal: Signal = LIGHT, samples: int = 9_600) -> str:
    """The id of an utterance that got this feedback."""
    result = device.recognize(noise(samples, seed), 16_000)
    device.feedback(result, signal)
    return result.utterance_id


def even(words: int) -> NDArray[np.float64]:
    """A background that expects every word alike."""
    return np.full(words, 1.0 / words)
