import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soundfile import read

from device_sdk.audio.files import SAMPLE_AUDIO
from device_sdk.errors import ConfigurationError
from device_sdk.features import FeatureSettings, Remainder, flush, frames, logmel
from device_sdk.features.logmel import KALDI
from export.benchmarks.features import kaldi
from tests.signals import chirp

NEMO = FeatureSettings()
FAMILIES = pytest.mark.parametrize(
    "family", [NEMO, FeatureSettings(mel_bins=80), KALDI], ids=["nemo-64", "nemo-80", "kaldi"]
)


def chunked(waveform, cuts, family=NEMO):
    remainder, parts = Remainder(np.zeros(0, np.float32)), []
    for begin, end in itertools.pairwise([0, *sorted(min(cut, len(waveform)) for cut in cuts), len(waveform)]):
        found, remainder = frames(waveform[begin:end], remainder, family)
        parts.append(found)
    return np.concatenate([*parts, flush(remainder, family)])


TINY = [*range(3), 79, 80, 81, 159, 160, 239, 240, 319, 320, 399, 400, 401]


@pytest.mark.parametrize("length", [*TINY, 4_800, 16_000, 16_079, 16_080, 16_081])
@pytest.mark.parametrize("level", [1.0, 1e-3, 0.0])
@FAMILIES
def test_features_are_kaldis(length, level, family):
    waveform = chirp(length, length) * np.float32(level) + np.float32(0.05 * level)
    found = logmel(waveform, family)
    assert found.shape == ((length + 80) // 160, family.mel_bins)
    assert found.dtype == np.float32 and np.isfinite(found).all()
    if length >= 240:  # below, Kaldi's own reflection reads past the waveform once
        np.testing.assert_allclose(found, kaldi([waveform.tolist()], family), atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 6_000), cuts=st.just(range(1_500)) | st.lists(st.integers(0, 6_000), max_size=10))
@FAMILIES
def test_any_chunking_gives_the_same_frames(family, length, cuts):
    waveform = chirp(length, 9)
    np.testing.assert_allclose(chunked(waveform, cuts, family), logmel(waveform, family), atol=2e-4)


@FAMILIES
def test_chunks_of_real_speech_are_kaldis(family):
    waveform = read(SAMPLE_AUDIO, dtype="float32")[0]
    found = chunked(waveform, range(0, len(waveform), 1_111), family)
    np.testing.assert_allclose(found, kaldi([waveform.tolist()], family), atol=1e-3)


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
        ({"window_type": "hamming"}, "window_type"),
        ({"mel_scale": "htk"}, "mel_scale"),
        ({"remove_dc": 1}, "remove_dc"),
    ],
)
def test_settings_outside_their_domain_are_named(values, field):
    with pytest.raises(ConfigurationError, match=rf"features\..*{field}"):
        FeatureSettings(**values)
