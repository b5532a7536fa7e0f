from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import DataError
from server.lab.corpora import open_corpus
from server.lab.corpora.heterogeneity import (
    MEASURES,
    blind_snr,
    compare,
    frames_of,
    log_hnr,
    loudness,
    measure,
    periodicity,
    permutation_entropy,
    purity,
)
from server.lab.corpora.utterance import Utterance, Waveform

RATE = 16_000
TIME = np.arange(RATE) / RATE


def voice(hertz: float, noise: float, level: float = 0.1, seed: int = 0) -> Waveform:
    """Harmonics of a pitch with white noise."""
    harmonics = sum(np.sin(2 * np.pi * hertz * k * TIME) / k for k in range(1, 12))
    made = level * (harmonics + noise * np.random.default_rng(seed).standard_normal(TIME.size))
    return np.asarray(made, np.float32)


def utterance(speaker: str, waveform: Waveform) -> Utterance:
    return Utterance(f"{speaker}-x", speaker, None, None, False, lambda: waveform)


@pytest.mark.parametrize("size", [0, 1, 959, 960, 961, 1120, 16_000])
def test_frames(size: int) -> None:
    frames = frames_of(np.ones(size, np.float32))
    assert frames.shape == (1 + max(0, size - 960) // 160, 960)
    if size >= 960:
        np.testing.assert_allclose(frames, 0, atol=1e-12)


def test_loudness_follows_the_power_law() -> None:
    soft, loud = (loudness(frames_of(voice(120, 0.1, level))).mean() for level in (0.01, 0.1))
    assert loud / soft == pytest.approx(100**0.3, rel=1e-6)


@pytest.mark.parametrize("hertz", [90, 160, 280, 440])
def test_harmonicity_falls_with_noise_as_it_should(hertz: float) -> None:
    """Of equal powers of tone and noise r is a half and the ratio 0 dB; ten times less noise gives 10 dB."""
    power = np.mean(voice(hertz, 0.0, 1.0).astype(np.float64) ** 2)
    for decibels in (0.0, 10.0, 20.0):
        noise = math.sqrt(power / 10 ** (decibels / 10))
        found = log_hnr(periodicity(frames_of(voice(hertz, noise)))).mean()
        assert found == pytest.approx(decibels, abs=2.0)


@given(st.lists(st.integers(-5, 5), min_size=12, max_size=40))
def test_permutation_entropy_counts_orders(samples: list[int]) -> None:
    """Against counting with a dictionary."""
    frame = np.array(samples, np.float64)
    total = len(samples) - 2
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for start in range(total):
        window = samples[start : start + 3]
        counts[tuple(sorted(range(3), key=lambda place: (window[place], place)))] += 1
    shares = [count / total for count in counts.values() if count]
    expected = -sum(share * math.log(share) for share in shares) / math.log(6)
    assert permutation_entropy(frame[None])[0] == pytest.approx(expected, abs=1e-12)


def test_permutation_entropy_of_noise_and_of_a_slow_tone() -> None:
    noise = np.random.default_rng(0).standard_normal((20, 400))
    assert permutation_entropy(noise).mean() > 0.99
    assert permutation_entropy(frames_of(np.sin(2 * np.pi * 50 * TIME).astype(np.float32))).mean() < 0.5


@pytest.mark.parametrize("gain", [3.0, 10.0])
def test_blind_snr_is_the_prediction_gain_of_a_known_process(gain: float) -> None:
    """White noise of variance 1 through an all-pole filter: prediction leaves the noise, so the ratio is the output's
    variance."""
    pole = math.sqrt(1 - 1 / 10 ** (gain / 10))
    made = scipy.signal.lfilter([1.0], [1.0, -pole], np.random.default_rng(0).standard_normal(6 * RATE))
    assert blind_snr(frames_of(made.astype(np.float32))).mean() == pytest.approx(gain, abs=0.8)


def test_voices_are_periodic_and_noise_is_not() -> None:
    assert periodicity(frames_of(voice(150, 0.01))).min() > 0.9
    assert np.median(periodicity(frames_of(voice(150, 0.0, 0.0) + 1e-3 * voice(1, 1.0)))) < 0.5
    assert (periodicity(np.zeros((2, 960))) == 0).all()


def test_purity_of_separate_and_of_mixed_clients() -> None:
    generator = np.random.default_rng(0)
    owners = np.repeat(np.arange(6), 12)
    apart = np.eye(6)[owners] * 20 + generator.standard_normal((72, 6))
    assert purity(apart, owners) == 1.0
    mixed = purity(generator.standard_normal((72, 6)), owners)
    assert 1 / 6 < mixed < 0.6
    assert purity(apart, owners, 1) == purity(apart, owners, 1)


def test_clients_in_different_rooms_differ_more_than_clients_in_one_room() -> None:
    """Levels and noise that vary between clients, within clients, or not at all."""

    def report(between: float, within: float) -> dict[str, tuple[float, float]]:
        generator = np.random.default_rng(1)
        made = []
        for client in range(5):
            centre = generator.normal(0, between)
            for number in range(3):
                level = 0.05 * 10 ** ((centre + generator.normal(0, within * (client % 3))) / 20)
                clip = voice(100 + 20 * client, 0.05 * 10 ** (abs(centre) / 10), level, 10 * client + number)[
                    : RATE // 2
                ]
                made.append(measure(utterance(f"client-{client}", clip)))
        spreads = compare("made", made).spreads
        return {name: (spread.between, spread.within) for name, spread in spreads.items()}

    alike, rooms, moving = report(0.1, 0.1), report(8.0, 0.1), report(0.1, 8.0)
    for name in ("loudness", "log_hnr", "blind_snr"):
        assert rooms[name][0] > 2 * alike[name][0], name
    assert moving["loudness"][1] > 3 * alike["loudness"][1]


def test_made_voices_are_reported_whole() -> None:
    corpus = open_corpus("made:devices")
    chosen = [one for one in corpus.utterances if one.id.endswith(("-0", "-1"))]
    report = compare(corpus.name, map(measure, chosen))
    assert report.clients == len({one.speaker for one in chosen}) and report.recordings == len(chosen)
    assert set(report.spreads) == set(MEASURES)
    assert all(len(spread.means) == report.clients for spread in report.spreads.values())
    assert 0.3 < report.purity <= 1.0, "voices and rooms of their own are found again"


def test_silence_and_single_clients() -> None:
    silent = measure(utterance("a", np.zeros(800, np.float32)))
    assert math.isnan(silent.values["blind_snr"])
    with pytest.raises(DataError, match="2 or more"):
        compare("one", [silent])
    report = compare("two", [silent, measure(utterance("b", voice(100, 0.1)))])
    assert report.as_json()["measures"]["blind_snr"]["means"][0] is None
