"""Rooms, microphones and noise: pure, seeded, bounded, and doing what their names say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from server.lab.corpora import SAMPLE_RATE, Waveform, acoustics

PLAIN = acoustics.Scene(1.0, -20.0, None, 0.0, None, 0.0, 0.0, (0.0,) * 8, 0.0, None, 1.0, None, None, (0.0, 0.0))
"""Its level is all that it sets."""


def tone(hertz: float = 440.0, seconds: float = 1.0) -> Waveform:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE)).astype(np.float32)


def through(waveform: Waveform, **changes: Any) -> Waveform:
    """Heard in a plain scene with some changes."""
    return acoustics.apply_scene(waveform, replace(PLAIN, **changes), np.random.default_rng(0))


def energy(waveform: np.ndarray, low: float, high: float) -> float:
    spectrum = np.abs(np.fft.rfft(waveform.astype(np.float64))) ** 2
    hertz = np.fft.rfftfreq(waveform.size, 1 / SAMPLE_RATE)
    return float(spectrum[(hertz >= low) & (hertz < high)].sum())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([acoustics.STRONG, acoustics.GENTLE]), st.integers(1, 20_000))
def test_any_scene_gives_finite_bounded_audio_and_repeats(seed: int, ranges: acoustics.Ranges, samples: int) -> None:
    waveform = np.random.default_rng(seed).standard_normal(samples).astype(np.float32) * 0.1
    before = waveform.copy()
    first = acoustics.augment(waveform, np.random.default_rng(seed), ranges)
    assert first.dtype == np.float32 and first.ndim == 1 and np.isfinite(first).all() and np.abs(first).max() <= 1.0
    assert np.array_equal(first, acoustics.augment(waveform, np.random.default_rng(seed), ranges))
    assert np.array_equal(waveform, before)


def test_a_plain_scene_only_sets_the_level() -> None:
    heard = through(tone())
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(0.1, rel=1e-3)
    assert np.corrcoef(heard, tone())[0, 1] == pytest.approx(1.0, abs=1e-6)


def test_silence_stays_silent_but_for_the_converter() -> None:
    silence = np.zeros(1_000, np.float32)
    assert not through(silence).any()
    assert not through(silence, snr_db=10.0, hum_hz=50.0, codec="gsm", overdrive=3.0, reverb_seconds=0.2).any()
    heard = through(np.zeros(20_000, np.float32), floor_db=-70.0)
    assert 20 * np.log10(np.sqrt(np.mean(heard**2))) == pytest.approx(-70.0, abs=0.3)


def test_noise_is_as_loud_as_its_signal_to_noise_ratio() -> None:
    heard = through(tone(1000.0, 4.0), snr_db=10.0)
    noise = energy(heard, 0, 990) + energy(heard, 1010, 8001)
    assert 10 * np.log10(energy(heard, 990, 1010) / noise) == pytest.approx(10.0, abs=0.7)


def test_hum_edges_and_speed() -> None:
    heard = through(tone(), hum_hz=50.0, edges=(0.5, 0.25))
    assert heard.size == int(1.75 * SAMPLE_RATE)
    assert energy(heard, 45, 55) > 10 * energy(through(tone(), edges=(0.5, 0.25)), 45, 55)
    faster = through(tone(), speed=1.25)
    assert faster.size == pytest.approx(SAMPLE_RATE / 1.25, abs=2)
    assert energy(faster, 540, 560) > 0.95 * energy(faster, 0, 8001)


def test_band_and_tilt_shape_the_spectrum() -> None:
    noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE).astype(np.float32) * 0.1
    heard = through(noise, band_hz=(300.0, 3400.0))
    assert energy(heard, 5000, 8001) < 0.01 * energy(heard, 1000, 3000)
    assert energy(heard, 0, 100) < 0.01 * energy(heard, 1000, 1100)
    tilted = through(noise, tilt_db=-6.0)
    low, high = energy(tilted, 950, 1050), energy(tilted, 3900, 4100) / 2
    assert 10 * np.log10(low / high) == pytest.approx(12.0, abs=1.5)


def test_overdrive_flattens_peaks() -> None:
    loud = through(tone(), overdrive=4.0)
    assert np.mean(np.abs(loud) > 0.99 * np.abs(loud).max()) > 0.5


@pytest.mark.parametrize("codec", acoustics.CODECS)
def test_a_codec_keeps_the_length_and_the_speech_but_not_all_of_it(codec: str) -> None:
    waveform = (tone(300.0) + 0.3 * tone(7_000.0)).astype(np.float32)[:-77]
    heard = through(waveform, codec=codec)
    assert heard.shape == waveform.shape and np.abs(heard - through(waveform)).max() > 1e-3
    kept = [energy(heard, hertz - 50, hertz + 50) / energy(waveform, hertz - 50, hertz + 50) for hertz in (300, 7_000)]
    assert kept[0] > 0.1 and (codec == "opus" or kept[1] < 0.01 * kept[0])


def test_half_of_the_noise_is_a_stretch_of_a_recording() -> None:
    generator, recorded = np.random.default_rng(0), tone(700.0, 0.3)
    heard = [acoustics.apply_scene(tone(), replace(PLAIN, snr_db=0.0), generator, [recorded]) for _ in range(40)]
    assert 10 <= np.sum(np.array([energy(each, 690, 711) / energy(each, 430, 451) for each in heard]) > 0.5) <= 30


def test_reverberation_rings_on() -> None:
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[100] = 1.0
    heard = through(click, reverb_seconds=0.4)
    assert np.abs(heard[2_000:4_000]).max() > 0
    assert np.abs(heard[200:3_000]).mean() > 3 * np.abs(heard[5_000:6_500]).mean()


@given(st.floats(0.05, 0.8), st.floats(-5, 15), st.integers(0, 1000))
def test_room_response_has_the_asked_direct_sound(rt60: float, direct_db: float, seed: int) -> None:
    response = acoustics.room_response(rt60, direct_db, np.random.default_rng(seed))
    assert response[0] == 1.0 and -10 * np.log10(np.sum(response[1:] ** 2)) == pytest.approx(direct_db, abs=1e-6)


@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
def test_noise_has_its_colour(colour: float) -> None:
    noise = acoustics.coloured_noise(1 << 17, colour, 0.0, np.random.default_rng(0))
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(1.0)
    octave = 10 * np.log10((energy(noise, 950, 1050) / 100) / (energy(noise, 1900, 2100) / 200))
    assert octave == pytest.approx(3.01 * colour, abs=0.8)


def test_impossible_input_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="speed factor"):
        acoustics.change_speed(tone(), 9.0)
    with pytest.raises(ConfigurationError, match="shape"):
        acoustics.apply_scene(np.zeros((2, 5), np.float32), PLAIN, np.random.default_rng(0))
    assert acoustics.pad(tone(), 0.5, 0.0).size == int(1.5 * SAMPLE_RATE)
