"""Devices that learn from noise, and a server in this process, for tests of what passes between the two."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_sdk import Bundle, CheckInError, Client, Device, DeviceSettings, Result
from device_sdk.feedback.signals import Signal
from device_sdk.learning import LearningSettings, StepSettings
from tests.bounds import ANYTHING
from tests.device_sdk.devices import KEY, LIGHT
from tests.live import LosesReports, hosted
from tests.server.parties import ENROLMENT, Operator, settings
from tests.signals import hiss

LEARNING = LearningSettings(
    rewrite_nats=1e6, passes=1, replays=0, cost_weight=0.0, step=StepSettings(learning_rate=0.05)
)
SETTINGS = DeviceSettings(learning=LEARNING, bounds=ANYTHING)


def opened(folder: Path, bundle: Bundle, settings=SETTINGS, key=KEY, streams=("marginals", "deltas")) -> Device:
    """A device whose user agrees to these streams."""
    device = Device.open(folder, key, bundle, settings)
    device.agree(*streams)
    return device


def heard(device: Device, seed: int = 1, signal: Signal = LIGHT) -> Result:
    """Hears a noise, and gets the signal."""
    result = device.recognize(hiss(seed), 16_000)
    device.feedback(result.utterance_id, signal)
    return result


def taught(device: Device, seed: int = 1, signal: Signal = LIGHT) -> Result:
    """Hears, and learns."""
    result = heard(device, seed, signal)
    device.learn()
    return result


def fails(device: Device, url: str, *, delivered: bool = False) -> None:
    """A check-in on whose line reports are lost, or, where these are ``delivered``, their receipts."""
    line = Client(url, transport=LosesReports(delivered=delivered), pause=lambda seconds: None)
    with line as client, pytest.raises(CheckInError, match="no usable answer after 3 tries"):
        device.check_in(client, ENROLMENT)


@dataclass
class Site:
    url: str
    operator: Operator

    def open(self, **plan: Any) -> str:
        return self.operator.open(suppression=0.0, **plan)

    def close(self, round_id: str) -> dict[str, Any]:
        return self.operator.close(round_id)


@contextmanager
def site(folder: Path, bundle: Bundle, **changes: Any) -> Iterator[Site]:
    """A server over ``folder``. changes: of its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    with hosted(settings(folder, **changes), bundle) as url, httpx.Client(timeout=120) as http:
        yield Site(url, Operator(http, url))
