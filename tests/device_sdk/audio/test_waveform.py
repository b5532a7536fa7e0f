from __future__ import annotations

import numpy as np
import pytest

from device_sdk.audio import check_waveform
from device_sdk.errors import AudioError


def test_int16_is_scaled():
    found = check_waveform(np.array([-32_768, 0, 16_384, 32_767], np.int16))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [-1.0, 0.0, 0.5, 32_767 / 32_768])


def test_float64_is_narrowed():
    found = check_waveform(np.array([-1.0, 0.1]))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([-1.0, 0.1], np.float32))
    with pytest.raises(AudioError, match="found nan at sample 1"):
        check_waveform(np.array([0.0, np.nan]))


def test_float32_is_taken_as_it_is():
    samples = np.array([-1.0, 0.25, 1.5], np.float32)
    assert check_waveform(samples) is samples
    assert check_waveform(np.zeros(0, np.float32)).size == 0
    strided = np.zeros(10, np.float32)[::2]
    assert check_waveform(strided).shape == (5,)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([0.0], r"mic: found list, expected a numpy array"),
        (None, r"mic: found NoneType"),
        (b"\x00\x00", r"mic: found bytes"),
        (np.zeros(3, np.float16), r"mic: found dtype float16, expected float32 or float64 in \[-1, 1\], or int16"),
        (np.zeros(3, np.int32), r"mic: found dtype int32"),
        (np.zeros(3, np.uint8), r"mic: found dtype uint8"),
        (np.zeros(3, object), r"mic: found dtype object"),
        (np.zeros((3, 2), np.float32), r"mic: found shape \(3, 2\), expected one channel"),
        (np.zeros((1, 3), np.int16), r"mic: found shape \(1, 3\)"),
        (np.float32(0).reshape(()), r"mic: found shape \(\)|mic: found float32"),
        (np.array([0, 0, np.nan], np.float32), r"mic: found nan at sample 2, expected finite"),
        (np.array([0, -np.inf, np.nan], np.float32), r"mic: found -inf at sample 1"),
        (np.array([np.inf], np.float32), r"mic: found inf at sample 0"),
        (np.array([300, -2e4], np.float32), r"mic: found values from -2e\+04 to 300, .*pass 16-bit samples as int16"),
    ],
)
def test_what_is_no_waveform_is_named(samples, message):
    with pytest.raises(AudioError, match=message):
        check_waveform(samples, "mic")


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_channels_are_averaged_where_asked(dtype):
    stereo = np.array([[0.0, 0.5], [1.0, -1.0], [0.25, 0.25]]) * (1 if dtype is np.float32 else 32_768 / 2)
    found = check_waveform(stereo.astype(dtype), mix_down=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25] if dtype is np.float32 else [0.125, 0.0, 0.125])
    assert check_waveform(stereo.astype(dtype)[:, :1], mix_down=True).shape == (3,)
    assert check_waveform(stereo.astype(dtype)[:0], mix_down=True).shape == (0,)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((2, 16_000), np.float32), r"mic: found shape \(2, 16000\), .*transpose it where channels come first"),
        (np.zeros((16_000, 0), np.float32), r"mic: found shape \(16000, 0\), expected \[samples\] or"),
        (np.zeros((2, 2, 2), np.int16), r"mic: found shape \(2, 2, 2\)"),
        (np.float32(0).reshape(()), r"mic: found"),
        (np.array([[0, 0], [0, np.nan]], np.float32), r"mic: found nan at sample 1, expected finite"),
        (np.array([[0, 300], [0, 0]], np.float32), r"mic: found values from 0 to 300"),
    ],
)
def test_what_cannot_be_mixed_down_is_named(samples, message):
    with pytest.raises(AudioError, match=message):
        check_waveform(samples, "mic", mix_down=True)


def test_masked_values_are_values():
    wave = np.ma.masked_array(np.array([0.1, np.nan, 0.2], np.float32), [False, True, False])
    with pytest.raises(AudioError, match="found nan at sample 1"):
        check_waveform(wave)
    assert type(check_waveform(np.ma.masked_array(np.zeros(3, np.float32), True))) is np.ndarray
