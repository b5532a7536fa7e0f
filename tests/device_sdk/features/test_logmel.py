from __future__ import annotations

import itertools

import kaldi_native_fbank
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from device_sdk.features import FeatureSettings, Remainder, flush, frames, logmel
from tests.signals import chirp


def chunked(waveform, cuts):
    remainder, parts = Remainder(np.zeros(0, np.float32)), []
    bounds = [0, *sorted(min(cut, len(waveform)) for cut in cuts), len(waveform)]
    for begin, end in itertools.pairwise(bounds):
        found, remainder = frames(waveform[begin:end], remainder)
        parts.append(found)
    return np.concatenate([*parts, flush(remainder)])


@pytest.mark.parametrize("length", [16_000, 16_079, 16_080, 16_081, 401, 4_800])
@pytest.mark.parametrize("level", [1.0, 1e-3, 0.0])
def test_features_are_kaldis(length, level):
    waveform = chirp(length, length) * np.float32(level)
    expected = kaldi(waveform)
    found = logmel(waveform)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("length", [*range(3), 79, 80, 81, 159, 160, 239, 240, 319, 320, 399, 400, 401])
def test_tiny_lengths(length):
    waveform = chirp(length, 5)
    found = logmel(waveform)
    assert found.shape == ((length + 80) // 160, 64)
    assert np.isfinite(found).all()
    if length >= 240:  # below, Kaldi's own reflection reads past the waveform once
        np.testing.assert_allclose(found, kaldi(waveform), atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 6_000), cuts=st.just(range(1_500)) | st.lists(st.integers(0, 6_000), max_size=10))
def test_any_chunking_gives_the_same_frames(length, cuts):
    waveform = chirp(length, 9)
    np.testing.assert_allclose(chunked(waveform, cuts), logmel(waveform), atol=2e-4)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"shift": 0}, "shift"),
        ({"shift": 500}, "shift"),
        ({"window": 400.0}, "window"),
        ({"mel_bins": 0}, "mel_bins"),
        ({"high_frequency": 9_000.0}, "high"),
        ({"low_frequency": -1.0}, "low"),
        ({"low_frequency": 8_000.0}, "low"),
    ],
)
def test_settings_outside_their_domain_are_named(values, field):
    with pytest.raises(ConfigurationError, match=rf"features\..*{field}"):
        FeatureSettings(**values)


def kaldi(waveform: np.ndarray, window: str = "hann", top: float = 8_000.0) -> np.ndarray:
    """waveform: [S] float32 at 16 kHz; top: the highest frequency, Hz, below 0 from the Nyquist frequency. Returns
    [T, 64] float32."""
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = 16_000
    options.frame_opts.dither = 0.0
    options.frame_opts.window_type = window
    options.frame_opts.snip_edges = False
    options.frame_opts.remove_dc_offset = False
    options.mel_opts.num_bins = 64
    options.mel_opts.low_freq = 0.0
    options.mel_opts.high_freq = top
    options.mel_opts.is_librosa = True
    online = kaldi_native_fbank.OnlineFbank(options)
    online.accept_waveform(16_000, waveform.tolist())
    online.input_finished()
    rows = [online.get_frame(i) for i in range(online.num_frames_ready)]
    return np.array(rows, np.float32).reshape(-1, 64)
