from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.audio import Resampler, check_sample_rate
from device_sdk.errors import AudioError
from tests.signals import chirp


@settings(max_examples=30, deadline=None)
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    length=st.integers(0, 9_000),
    cuts=st.lists(st.integers(0, 9_000), max_size=6),
)
def test_any_chunking_gives_the_same_samples(rate, length, cuts):
    samples = chirp(length)
    whole = Resampler(rate).feed(samples, last=True)
    resampler = Resampler(rate)
    bounds = [0, *sorted(min(cut, length) for cut in cuts), length]
    parts = [resampler.feed(samples[a:b]) for a, b in itertools.pairwise(bounds)]
    np.testing.assert_array_equal(np.concatenate([*parts, resampler.finish()]), whole)
    np.testing.assert_array_equal(resampler.feed(samples, last=True), whole)  # it can begin again
    assert abs(len(whole) - length * 16_000 / rate) <= 1


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_a_tone_stays_a_tone(rate):
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    found = Resampler(rate).feed(tone, last=True)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=1e-3)


def test_the_same_rate_passes_through():
    samples = chirp(100)
    assert Resampler(16_000).feed(samples) is samples
    assert Resampler(16_000).finish().size == 0


@pytest.mark.parametrize("rate", [0, -1, 3_999, 400_000, 16_000.0, "16000", None, True])
def test_rates_that_cannot_be_are_refused(rate):
    with pytest.raises(AudioError, match=r"call: found sample rate .* expected an integer from 4000 to 384000"):
        check_sample_rate(rate, "call")
    assert check_sample_rate(np.int64(8_000)) == 8_000
