"""What was heard waits for feedback of another process, where the app asks for it and the user agrees; for an hour."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Accepted, Bundle, Corrected, Device, FeedbackError, GuardSettings
from device_sdk.personalization import cache as caches
from tests.device_sdk.devices import KEY, LIGHT, quick
from tests.device_sdk.state.audit import findings
from tests.signals import noise

SETTINGS = replace(quick(wait_seconds=600), keep_corrected=True, keep_heard=True, guard=GuardSettings(withhold=0))


def test_another_process_corrects_and_a_third_learns(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.agree("keeping")
        heard = device.recognize(noise(9_600, 1), 16_000)
        assert [(each.kept, each.feedback) for each in device.remembered()] == [(True, False)]
        assert findings(tmp_path, KEY, tiny_bundle) == []
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        (remembered,) = device.remembered()
        assert remembered.utterance_id == heard.utterance_id and 3500 < remembered.seconds_left <= 3600
        assert device.learn().steps == 0, "it waits"
        device.feedback(heard.utterance_id, LIGHT)
        assert device.remembered()[0].seconds_left > 80_000
        assert "1 utterance" in str(device.learned()) and "on its disk" in str(device.learned())
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        assert (device.learn().steps, device.remembered()) == (1, ())
        with pytest.raises(FeedbackError, match="not in memory"):
            device.feedback(heard.utterance_id, Accepted())


def test_a_correction_in_another_process_mends_the_counts(tmp_path: Path, tiny_bundle: Bundle) -> None:
    def counted(device: Device) -> tuple[object, object]:
        return device.learned().words, device.learned().unlisted

    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.agree("keeping", "marginals")
        device.feedback(device.recognize(noise(9_600, 1), 16_000), LIGHT)
        expected = counted(device)
        device.forget()
        device.agree("keeping", "marginals")
        heard = device.recognize(noise(9_600, 1), 16_000)
        assert counted(device) != expected
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.feedback(heard.utterance_id, LIGHT)
        assert counted(device) == expected and device.learned().utterances == 1
        assert due(device) == {"turn", "on", "the", "light"} and device._model_state.cache.pending_utterances == 1
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.feedback(heard.utterance_id, Corrected("turn off the light"))
        assert counted(device) == expected, "once"


def due(device: Device) -> set[str]:
    """Words that the next report may name."""
    words = device.base.words
    return {words[at] for at in np.flatnonzero(device._model_state.cache.pending).tolist()}


@pytest.mark.parametrize("way", ["handed on", "agreed later", "agreed anew"])
def test_what_was_reported_or_never_to_be_is_not_due_by_a_correction(tmp_path: Path, tiny_bundle: Bundle, way) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.agree("keeping")
        if way != "agreed later":
            device.agree("marginals")
        heard = device.recognize(noise(9_600, 1), 16_000)
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        if way == "handed on":
            device._model_state.keep_cache(caches.reported(device._model_state.cache))
        else:
            device.withdraw("marginals")
            device.agree("marginals")
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.feedback(heard.utterance_id, LIGHT)
        assert due(device) == set() and device._model_state.cache.pending_utterances == 0
        assert dict(device.learned().words).keys() == {"turn", "on", "the", "light"}


@pytest.mark.parametrize("why", ["no consent", "the app no more", "withdrawn"])
def test_it_is_not_on_the_disk_without_app_and_user(tmp_path: Path, tiny_bundle: Bundle, why: str) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        if why != "no consent":
            device.agree("keeping")
        device.recognize(noise(9_600, 1), 16_000)
        if why == "withdrawn":
            device.withdraw("keeping")
        assert len(device._store.names("kept")) == (why == "the app no more")
    with Device.open(tmp_path, KEY, tiny_bundle, replace(SETTINGS, keep_heard=False)) as device:
        assert device.remembered() == () and device._store.names("kept") == []
