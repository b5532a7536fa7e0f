"""Feedback on a device that counts words but does not learn weights."""

from __future__ import annotations

from pathlib import Path

from device_sdk.bundle import Bundle
from device_sdk.device import Device
from device_sdk.feedback.signals import Cancelled, Semantics
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.settings import DeviceSettings
from tests.device_sdk.devices import KEY
from tests.signals import hiss as speech

COUNTING = DeviceSettings(learn=False)


def test_counts_are_mended_without_learning(tmp_path: Path, tiny_bundle: Bundle) -> None:
    lexicon = SlotLexicon({"drink": ("coffee", "tea")})
    with Device.open(tmp_path, KEY, tiny_bundle, COUNTING) as device:
        first = device.recognize(speech(1), 16_000).utterance_id
        before = dict(device.learned().words)
        device.feedback(first, Semantics({"drink": "coffee"}, lexicon))
        assert dict(device.learned().words).get("coffee", 0.0) > before.get("coffee", 0.0)
        device.feedback(first, Cancelled())
        assert device.learned().words == ()


def test_a_device_that_only_learns_counts_nothing(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = DeviceSettings(use_marginals=False, share_marginals=False)
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        heard = device.recognize(speech(1), 16_000).utterance_id
        device.feedback(heard, Semantics({"drink": "tea"}, SlotLexicon({"drink": ("coffee", "tea")})))
        assert device.learned().words == ()
