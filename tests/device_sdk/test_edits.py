"""A user writes over what was heard: only what it comes to is a correction."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk import Bundle, Corrected, Device, FeedbackError
from device_sdk.errors import ConfigurationError, StateError
from device_sdk.state import Store
from tests.device_sdk.devices import KEY, quick
from tests.signals import noise


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Device]:
    with Device.open(tmp_path, KEY, tiny_bundle, quick()) as opened:
        yield opened


def at(device: Device, seconds: float) -> None:
    """The device's clock is at this time from now on."""
    device._recent._clock = lambda: seconds


def test_half_finished_edits_teach_nothing_until_they_settle(device: Device) -> None:
    at(device, 0.0)
    result = device.recognize(noise(9_600, 1), 16_000)
    for place, text in enumerate(("turn", "turn on th", "turn on the zugzwang")):
        at(device, float(place))
        device.edit(result, text)
        assert device.learn().utterances == 0
    at(device, 4.9)
    assert device.learn().utterances == 0 and device.vocabulary.list() == ()
    at(device, 5.1)
    assert device.learn().utterances == 1
    assert [each.phrase for each in device.vocabulary.list()] == ["zugzwang"], "and not th"


def test_what_comes_next_settles_it_too(device: Device) -> None:
    at(device, 0.0)
    result = device.recognize(noise(9_600, 1), 16_000)
    device.edit(result, "call zugzwang")
    at(device, 4.0)
    device.recognize(noise(9_600, 2), 16_000)
    assert device._recent.get(result.utterance_id).signal == Corrected("call zugzwang")


def test_what_is_no_correction_is_left_alone(device: Device) -> None:
    at(device, 0.0)
    result = device.recognize(noise(9_600, 1), 16_000)
    for text in ("", "at 7", "\u0434\u0430"):
        device.edit(result, text)
        at(device, 4.0)
        assert device.learn().utterances == 0
        at(device, 0.0)
    assert not device.remembered()[0].feedback
    with pytest.raises(FeedbackError, match="not in memory"):
        device.edit("nothing", "call")
    with pytest.raises(ConfigurationError, match="text: found int"):
        device.edit(result, 7)  # type: ignore[arg-type]


def test_a_full_disk_costs_neither_the_next_result_nor_the_edit(device: Device, monkeypatch, caplog) -> None:
    def full(*_: object) -> None:
        raise StateError("disk full")

    at(device, 0.0)
    result = device.recognize(noise(9_600, 1), 16_000)
    device.edit(result, "call zugzwang")
    at(device, 4.0)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", full)
        assert device.recognize(noise(9_600, 2), 16_000).nbest
    assert "waits until it can be written" in caplog.text and device.vocabulary.list() == ()
    at(device, 8.0)
    device.recognize(noise(9_600, 2), 16_000)
    assert [each.phrase for each in device.vocabulary.list()] == ["zugzwang"]


def test_closing_settles_what_is_left(tmp_path: Path, tiny_bundle: Bundle) -> None:
    device = Device.open(tmp_path, KEY, tiny_bundle, quick())
    device.edit(device.recognize(noise(9_600, 1), 16_000), "call zugzwang")
    device.close()
    with Device.open(tmp_path, KEY, tiny_bundle) as again:
        assert [each.phrase for each in again.vocabulary.list()] == ["zugzwang"]
