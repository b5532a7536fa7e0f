from contextlib import closing
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from device_sdk.bundle import Bundle
from device_sdk.decoding import Recognizer
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError, StateError
from device_sdk.features import logmel
from device_sdk.features.channel import LEAST_SECONDS, Channel, ChannelSettings, from_bytes, offset, to_bytes, update
from device_sdk.settings import DeviceSettings
from device_sdk.state import Store
from tests.device_sdk.devices import KEY
from tests.signals import noise

SETTINGS = ChannelSettings(prior_seconds=6.0, memory_seconds=100.0)


def test_an_example_by_hand() -> None:
    """Two utterances of 1 and 2 s with means 3 and 6, a model's mean of 2, a prior of 6 s: (1 + 8) / (3 + 6) = 1."""
    channel = update(Channel(), np.full((100, 2), 3, np.float32), 1.0, SETTINGS)
    channel = update(channel, np.full((200, 2), 6, np.float32), 2.0, SETTINGS)
    assert channel == Channel((5.0, 5.0), 3.0)
    found = offset(channel, np.full(2, 2, np.float32), SETTINGS)
    assert found is not None and found.dtype == np.float32 and found.tolist() == [1.0, 1.0]
    assert offset(channel, np.zeros(3, np.float32), SETTINGS) is None  # of another number of bins
    assert offset(Channel(), np.zeros(2, np.float32), SETTINGS) is None  # nothing was heard


FRAMES = arrays(np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=st.floats(-16, 8, width=32))


@given(st.lists(FRAMES, min_size=1, max_size=6))
def test_utterances_add_up_to_one_mean(utterances: list[np.ndarray]) -> None:
    """Within its memory a channel is the mean of all frames, in whatever order they came."""
    everything = np.concatenate(utterances).astype(np.float64)
    for order in (utterances, utterances[::-1]):
        channel = reduce(lambda channel, each: update(channel, each, len(each) / 100, SETTINGS), order, Channel())
        np.testing.assert_allclose(channel.mean, everything.mean(0), atol=1e-9)
        assert channel.seconds == pytest.approx(len(everything) / 100)


@given(FRAMES, st.floats(0.1, 1000), st.floats(0.1, 1000))
def test_the_offset_lies_between_nothing_and_the_whole_difference(features, seconds, prior):
    settings = ChannelSettings(prior, 1000.0)
    channel = update(Channel(), features, seconds, settings)
    found = offset(channel, np.zeros(3, np.float32), settings)
    assert found is not None and np.all(np.abs(found) <= np.abs(np.array(channel.mean)) + 1e-6)
    assert np.all(found * np.array(channel.mean) >= 0)


def test_another_microphone_is_followed() -> None:
    channel = Channel()
    for _ in range(200):
        channel = update(channel, np.full((100, 1), 4, np.float32), 1.0, SETTINGS)
    assert channel == Channel((4.0,), SETTINGS.memory_seconds)
    for _ in range(300):
        channel = update(channel, np.full((100, 1), -4, np.float32), 1.0, SETTINGS)
    assert channel.seconds == SETTINGS.memory_seconds and channel.mean[0] < -3.2


def test_what_is_no_frame_changes_nothing() -> None:
    channel = Channel((1.0,), 3.0)
    assert update(channel, np.zeros((0, 1), np.float32), 1.0, SETTINGS) is channel
    assert update(channel, np.full((2, 1), np.nan, np.float32), 1.0, SETTINGS) is channel
    assert update(channel, np.zeros((2, 2), np.float32), 1.0, SETTINGS) == Channel((0.0, 0.0), 1.0)


def test_stored_and_read_again() -> None:
    assert from_bytes(None) == Channel() and from_bytes(to_bytes(Channel())) == Channel()
    assert from_bytes(to_bytes(Channel((1.23456, -2.0), 3.5))) == Channel((1.2346, -2.0), 3.5)


DAMAGED = [b'{"mean": [NaN], "seconds": 1}', b'{"mean": ["x"], "seconds": 1}', b'{"mean": [], "seconds": -1}']


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", *DAMAGED])
def test_damage_is_named(content: bytes) -> None:
    with pytest.raises(StateError, match="counts/channel: the value cannot be read"):
        from_bytes(content)


@pytest.mark.parametrize(("prior", "memory"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_settings_are_checked(prior: float, memory: float) -> None:
    with pytest.raises(ConfigurationError, match=r"channel\.(prior|memory)_seconds: found"):
        ChannelSettings(prior, memory)


def test_a_recognizer_behind_a_channel_hears_what_it_would_hear_without(tiny_bundle: Bundle) -> None:
    audio = noise(20_000)
    filtered = np.convolve(audio, [1.0, -0.6])[: audio.size].astype(np.float32)
    taken = logmel(filtered, tiny_bundle.features).mean(0) - logmel(audio, tiny_bundle.features).mean(0)
    plain = Recognizer(tiny_bundle)
    behind = plain.with_offset(taken)
    assert plain.offset is None and behind.transducer is plain.transducer
    session = behind.session(16_000)
    for at in range(0, filtered.size, 777):
        session.feed(filtered[at : at + 777])
    session.finish()
    np.testing.assert_allclose(session.features, logmel(filtered, tiny_bundle.features) - taken, rtol=0, atol=1e-5)


def test_a_device_learns_its_channel_with_consent_and_forgets_it(tmp_path: Path, tiny_bundle: Bundle) -> None:
    audio = [noise(48_000, seed) for seed in range(5)]
    difference = np.mean([logmel(each, tiny_bundle.features).mean(0) for each in audio], axis=0)
    difference -= tiny_bundle.weights["features.mean"]
    settings = DeviceSettings(channel=ChannelSettings(prior_seconds=15.0))

    def stored(folder: Path) -> bool:
        with closing(Store(folder, KEY)) as store:
            return store.get("counts", "channel") is not None

    with Device.open(tmp_path / "no", KEY, tiny_bundle, settings) as device:
        device.withdraw("learning")
        assert device.recognize(audio[0], 16_000).text, "the tiny model hears words in noise"
        assert device.learned().channel_seconds == 0.0 and device.session(16_000)._recognizer.offset is None
    with Device.open(tmp_path / "off", KEY, tiny_bundle) as device:
        device.recognize(audio[0], 16_000)
        assert device.learned().channel_seconds == 0.0, "off unless an app asks for it"
    with Device.open(tmp_path / "yes", KEY, tiny_bundle, settings) as device:
        device.agree("learning")
        for number, each in enumerate(audio, 1):
            device.recognize(each, 16_000)
            assert device.learned().channel_seconds == pytest.approx(3.0 * number, abs=0.1)
        offset_now = device.session(16_000)._recognizer.offset
        np.testing.assert_allclose(offset_now, difference / 2, atol=2e-3)
        assert "how its microphone, room and user sound on average" in str(device.learned())
    assert stored(tmp_path / "yes") and not stored(tmp_path / "no")
    with Device.open(tmp_path / "yes", KEY, tiny_bundle, settings) as device:
        np.testing.assert_allclose(device.session(16_000)._recognizer.offset, offset_now, atol=1e-4)
        device.withdraw("learning")
        device.recognize(audio[0], 16_000)
        assert device.learned().channel_seconds == pytest.approx(15.0, abs=0.1), "nothing is learned without consent"
        np.testing.assert_allclose(device.session(16_000)._recognizer.offset, offset_now, atol=1e-4)
        device.forget()
        assert device.session(16_000)._recognizer.offset is None
    assert not stored(tmp_path / "yes")


def test_a_mean_over_little_speech_stays_in_memory(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(channel=ChannelSettings())) as device:
        assert device.recognize(noise(32_000, 2), 16_000).text
        assert 0 < device.learned().channel_seconds < LEAST_SECONDS
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(learn=False)) as device:
        assert device.learned().channel_seconds == 0.0
