from __future__ import annotations

import numpy as np
import pytest

from device_sdk.audio import check_waveform
from device_sdk.errors import AudioError


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.array([-32_768, 0, 16_384, 32_767], np.int16), [-1.0, 0.0, 0.5, 32_767 / 32_768]),
        (np.array([-1.0, 0.1]), np.array([-1.0, 0.1], np.float32)),
    ],
)
def test_other_types_become_float32(samples, expected):
    found = check_waveform(samples)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("samples", "mix_down", "message"),
    [
        ([0.0], False, r"mic: found list, expected a numpy array"),
        (None, False, r"mic: found NoneType"),
        (np.zeros(3, np.float16), False, r"found dtype float16, expected float32 or float64 in \[-1, 1\], or int16"),
        (np.zeros(3, np.int32), False, r"mic: found dtype int32"),
        (np.zeros(3, object), False, r"mic: found dtype object"),
        (np.zeros((3, 2), np.float32), False, r"mic: found shape \(3, 2\), expected one channel"),
        (np.zeros((1, 3), np.int16), False, r"mic: found shape \(1, 3\)"),
        (np.float32(0).reshape(()), False, r"mic: found shape \(\)|mic: found float32"),
        (np.array([0, 0, np.nan], np.float32), False, r"mic: found nan at sample 2, expected finite"),
        (np.array([0.0, np.nan]), False, r"mic: found nan at sample 1"),
        (np.array([0, -np.inf, np.nan], np.float32), False, r"mic: found -inf at sample 1"),
        (np.array([300, -2e4], np.float32), False, r"found values from -2e\+04 to 300, .*pass 16-bit samples as int16"),
        (np.zeros((2, 16_000), np.float32), True, r"\(2, 16000\), .*transpose it where channels come first"),
        (np.zeros((16_000, 0), np.float32), True, r"mic: found shape \(16000, 0\), expected \[samples\] or"),
        (np.zeros((2, 2, 2), np.int16), True, r"mic: found shape \(2, 2, 2\)"),
        (np.float32(0).reshape(()), True, r"mic: found"),
        (np.array([[0, 0], [0, np.nan]], np.float32), True, r"mic: found nan at sample 1, expected finite"),
        (np.array([[0, 300], [0, 0]], np.float32), True, r"mic: found values from 0 to 300"),
    ],
)
def test_what_is_no_waveform_is_named(samples, mix_down, message):
    with pytest.raises(AudioError, match=message):
        check_waveform(samples, "mic", mix_down=mix_down)


def test_float32_is_taken_as_it_is():
    samples = np.array([-1.0, 0.25, 1.5], np.float32)
    assert check_waveform(samples) is samples
    assert check_waveform(np.zeros(0, np.float32)).size == 0
    strided = np.zeros(10, np.float32)[::2]
    assert check_waveform(strided).shape == (5,)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_channels_are_averaged_where_asked(dtype):
    stereo = np.array([[0.0, 0.5], [1.0, -1.0], [0.25, 0.25]]) * (1 if dtype is np.float32 else 32_768 / 2)
    found = check_waveform(stereo.astype(dtype), mix_down=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25] if dtype is np.float32 else [0.125, 0.0, 0.125])
    assert check_waveform(stereo.astype(dtype)[:, :1], mix_down=True).shape == (3,)
    assert check_waveform(stereo.astype(dtype)[:0], mix_down=True).shape == (0,)


def test_masked_values_are_values():
    wave = np.ma.masked_array(np.array([0.1, np.nan, 0.2], np.float32), [False, True, False])
    with pytest.raises(AudioError, match="found nan at sample 1"):
        check_waveform(wave)
    assert type(check_waveform(np.ma.masked_array(np.zeros(3, np.float32), True))) is np.ndarray
