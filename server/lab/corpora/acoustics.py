"""Rooms, microphones and noise: what lies between a voice and a recognizer.

A :class:`Scene` is one place with one microphone, drawn once: for an utterance in training, for a device's life in a
simulation. All waveforms are float32 [S] at 16 kHz in [-1, 1]."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from device_sdk.checks import check_interval
from device_sdk.errors import ConfigurationError
from server.lab.corpora.utterance import SAMPLE_RATE, Waveform

Samples = npt.NDArray[np.float64]
_EQ_HZ = (60.0, 150.0, 350.0, 800.0, 1600.0, 3000.0, 5000.0, 7800.0)

CODECS = {
    "narrow": (8_000, "WAV", "PCM_16"),
    "telephone": (8_000, "WAV", "ALAW"),
    "gsm": (8_000, "WAV", "GSM610"),
    "opus": (SAMPLE_RATE, "OGG", "OPUS"),
}
"""Name -> (sample rate, container, coding) of what lies between a voice and whoever records it."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What scenes are drawn from; a probability says how often a stage is there at all. speed: factors. gain_db: of the
    speech's RMS, relative to full scale. reverb_seconds: RT60. direct_db: direct sound over reverberation. snr_db:
    speech over noise. eq_db: standard deviation of each band of a random equalizer. tilt_db: standard deviation of the
    spectral tilt, dB an octave. low_hz, high_hz: corners of the microphone's band. floor_db: of the converter's own
    white noise, relative to full scale, which is always there."""

    speed: tuple[float, float] = (0.88, 1.14)
    gain_db: tuple[float, float] = (-38.0, -14.0)
    reverb: float = 0.6
    reverb_seconds: tuple[float, float] = (0.08, 0.7)
    direct_db: tuple[float, float] = (-3.0, 15.0)
    noise: float = 0.85
    snr_db: tuple[float, float] = (6.0, 45.0)
    eq_db: float = 4.0
    tilt_db: float = 2.0
    band: float = 0.4
    low_hz: tuple[float, float] = (40.0, 350.0)
    high_hz: tuple[float, float] = (3300.0, 7500.0)
    clip: float = 0.1
    codec: float = 0.35
    hum: float = 0.15
    edges_seconds: tuple[float, float] = (0.1, 0.7)
    floor_db: tuple[float, float] = (-95.0, -60.0)


STRONG = Ranges()
"""For base training on made speech."""

GENTLE = Ranges(
    speed=(1.0, 1.0),
    gain_db=(-30.0, -18.0),
    reverb=0.5,
    reverb_seconds=(0.08, 0.35),
    direct_db=(3.0, 15.0),
    noise=1.0,
    snr_db=(12.0, 35.0),
    eq_db=2.5,
    tilt_db=1.0,
    band=0.3,
    clip=0.0,
    codec=0.0,
    hum=0.1,
    edges_seconds=(0.2, 0.4),
)
"""A quiet home with an ordinary microphone: simulated devices."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One room and one microphone; None or 0 leaves a stage out. Units as in :class:`Ranges`. eq_db: gain at each band
    of a fixed list of frequencies. noise_colour: power falls as 1 / f ** colour (0 white, 1 pink, 2 brown). sway: how
    far the noise's loudness wanders, 0 to 1. overdrive: gain before clipping, 1 for none."""

    speed: float
    gain_db: float
    reverb_seconds: float | None
    direct_db: float
    snr_db: float | None
    noise_colour: float
    sway: float
    eq_db: tuple[float, ...]
    tilt_db: float
    band_hz: tuple[float, float] | None
    overdrive: float
    codec: str | None
    hum_hz: float | None
    edges: tuple[float, float]
    floor_db: float | None = None


def draw_scene(generator: np.random.Generator, ranges: Ranges = STRONG) -> Scene:
    """A random scene."""
    present = generator.random(6)
    return Scene(
        speed=float(generator.uniform(*ranges.speed)),
        gain_db=float(generator.uniform(*ranges.gain_db)),
        reverb_seconds=float(generator.uniform(*ranges.reverb_seconds)) if present[0] < ranges.reverb else None,
        direct_db=float(generator.uniform(*ranges.direct_db)),
        snr_db=float(generator.uniform(*ranges.snr_db)) if present[1] < ranges.noise else None,
        noise_colour=float(generator.uniform(0.0, 2.0)),
        sway=float(generator.uniform(0.0, 0.8)),
        eq_db=tuple(generator.normal(0.0, ranges.eq_db, len(_EQ_HZ)).tolist()),
        tilt_db=float(generator.normal(0.0, ranges.tilt_db)),
        band_hz=(
            (float(generator.uniform(*ranges.low_hz)), float(generator.uniform(*ranges.high_hz)))
            if present[2] < ranges.band
            else None
        ),
        overdrive=float(generator.uniform(1.5, 5.0)) if present[3] < ranges.clip else 1.0,
        codec=str(generator.choice(list(CODECS))) if present[4] < ranges.codec else None,
        hum_hz=float(generator.choice([50.0, 60.0])) if present[5] < ranges.hum else None,
        edges=(float(generator.uniform(*ranges.edges_seconds)), float(generator.uniform(*ranges.edges_seconds))),
        floor_db=float(generator.uniform(*ranges.floor_db)),
    )


def augment(
    waveform: Waveform, generator: np.random.Generator, ranges: Ranges = STRONG, noises: Sequence[Waveform] = ()
) -> Waveform:
    """The waveform through a fresh random scene; noises: see :func:`apply_scene`."""
    return apply_scene(waveform, draw_scene(generator, ranges), generator, noises)


def apply_scene(
    waveform: Waveform, scene: Scene, generator: np.random.Generator, noises: Sequence[Waveform] = ()
) -> Waveform:
    """The waveform as the scene's microphone records it, float32, peak at most 1; longer by the scene's edges, and
    changed in length by its speed. Noise and the exact reflections of the room are drawn from the generator; where
    there are ``noises``, recordings [S] of what is heard in homes, half of the noise is a stretch of one of them."""
    if waveform.ndim != 1 or waveform.size == 0:
        raise ConfigurationError(f"waveform of shape {waveform.shape}: expected [S] with S > 0")
    speech: Samples = pad(change_speed(waveform, scene.speed), *scene.edges).astype(np.float64)
    length = speech.size
    size = _fft_size(length + (0 if scene.reverb_seconds is None else int(scene.reverb_seconds * SAMPLE_RATE)))
    if scene.reverb_seconds is not None:
        response = room_response(scene.reverb_seconds, scene.direct_db, generator)
        speech = np.fft.irfft(np.fft.rfft(speech, size) * np.fft.rfft(response, size), size)[:length]
    level = _rms(speech[np.abs(speech) > 0.01 * np.abs(speech).max()])
    if scene.snr_db is not None:
        noise = draw_noise(length, scene, generator, noises)
        speech = speech + noise * level * 10 ** (-scene.snr_db / 20)
    if scene.hum_hz is not None:
        speech = speech + _hum(length, scene.hum_hz, generator) * level * 0.03
    speech = np.fft.irfft(np.fft.rfft(speech, size) * _microphone(size, scene), size)[:length]
    peak = float(np.abs(speech).max())
    if peak > 0:
        speech = np.clip(speech * scene.overdrive / peak, -1.0, 1.0)
        if scene.codec is not None:
            speech = through_codec(speech, scene.codec)
        speech = speech * (10 ** (scene.gain_db / 20) / max(_rms(speech), 1e-9))
    if scene.floor_db is not None:
        speech = speech + generator.standard_normal(length) * 10 ** (scene.floor_db / 20)
    return np.clip(speech, -1.0, 1.0).astype(np.float32)


def change_speed(waveform: Waveform, factor: float) -> Waveform:
    """Played ``factor`` times faster (pitch and formants rise with it), still at 16 kHz."""
    if factor == 1.0:
        return waveform
    check_interval("speed factor", factor, "[0.25, 4]")
    return soxr.resample(waveform, SAMPLE_RATE * factor, SAMPLE_RATE, quality="LQ").astype(np.float32)


def pad(waveform: Waveform, before: float, after: float) -> Waveform:
    """With silence before and after, in seconds."""
    return np.pad(waveform, (int(before * SAMPLE_RATE), int(after * SAMPLE_RATE)))


def room_response(rt60: float, direct_db: float, generator: np.random.Generator) -> Samples:
    """A made impulse response [rt60 * 16000]: a direct impulse, a few reflections, and noise that decays 60 dB in rt60,
    high frequencies sooner. direct_db: energy of the direct sound over that of all the rest."""
    length = max(int(rt60 * SAMPLE_RATE), 64)
    time = np.arange(length) / SAMPLE_RATE
    tail = generator.standard_normal(length) * np.exp(-6.9078 * time / rt60)
    smooth = np.convolve(tail, np.full(4, 0.25), mode="same")
    blend = np.exp(-3.0 * time / rt60)
    tail = tail * blend + smooth * 2.0 * (1 - blend)
    tail[: max(1, int(0.002 * SAMPLE_RATE))] = 0.0
    early = generator.integers(int(0.002 * SAMPLE_RATE), max(int(0.03 * SAMPLE_RATE), 33), 5)
    tail[early[early < length]] += generator.uniform(-3.0, 3.0, int((early < length).sum()))
    tail *= 10 ** (-direct_db / 20) / max(float(np.linalg.norm(tail)), 1e-9)
    tail[0] = 1.0
    return tail


def draw_noise(samples: int, scene: Scene, generator: np.random.Generator, noises: Sequence[Waveform] = ()) -> Samples:
    """Noise [samples] of RMS 1: of the scene's colour or, for half of the draws where there are ``noises``, a stretch
    of one of them, which begins again where it ends."""
    if not noises or generator.random() < 0.5:
        return coloured_noise(samples, scene.noise_colour, scene.sway, generator)
    recorded = noises[int(generator.integers(len(noises)))]
    stretch = np.take(recorded, np.arange(samples) + generator.integers(recorded.size), mode="wrap").astype(np.float64)
    return np.asarray(stretch / max(_rms(stretch), 1e-12))


def coloured_noise(samples: int, colour: float, sway: float, generator: np.random.Generator) -> Samples:
    """Noise [samples] of RMS 1 whose power falls as 1 / f ** colour and whose loudness wanders by ``sway`` (0 to 1)."""
    size = _fft_size(samples)
    shape = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 40.0) ** (-colour / 2)
    noise = np.fft.irfft(np.fft.rfft(generator.standard_normal(size)) * shape, size)[:samples]
    if sway > 0:
        points = np.exp(sway * generator.standard_normal(samples // 4000 + 2))
        noise = noise * np.interp(np.arange(samples), np.arange(points.size) * 4000, points)
    return np.asarray(noise / max(_rms(noise), 1e-12))


def through_codec(waveform: Samples, codec: str) -> Samples:
    """What one of :data:`CODECS` leaves of a waveform [S] in [-1, 1], as long as before."""
    rate, container, coding = CODECS[codec]
    file = io.BytesIO()
    quality = {"compression_level": 1.0} if coding == "OPUS" else {}  # the fewest bits
    soundfile.write(file, soxr.resample(waveform, SAMPLE_RATE, rate), rate, coding, format=container, **quality)
    file.seek(0)
    coded = soxr.resample(soundfile.read(file, dtype="float32")[0], rate, SAMPLE_RATE)[: waveform.size]
    return np.pad(coded, (0, waveform.size - coded.size)).astype(np.float64)


def _hum(samples: int, hertz: float, generator: np.random.Generator) -> Samples:
    """Mains hum with a few harmonics, each with its own phase."""
    turns = 2 * np.pi * hertz * np.arange(samples) / SAMPLE_RATE
    waves = [np.sin(harmonic * turns + generator.uniform(0, 2 * np.pi)) / harmonic for harmonic in (1, 2, 3, 5)]
    return np.asarray(np.sum(waves, axis=0))


def _microphone(size: int, scene: Scene) -> Samples:
    """Gain at every frequency of a transform of ``size`` samples (zero phase)."""
    hertz = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 20.0)
    octaves = np.log2(hertz / 1000.0)
    decibels = np.interp(octaves, np.log2(np.array(_EQ_HZ) / 1000.0), scene.eq_db) + scene.tilt_db * octaves
    gain = 10 ** (decibels / 20)
    if scene.band_hz is not None:
        low, high = scene.band_hz
        gain = gain / np.sqrt((1 + (low / hertz) ** 6) * (1 + (hertz / high) ** 16))
    return np.asarray(gain)


def _rms(waveform: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(waveform)))) if waveform.size else 0.0


def _fft_size(samples: int) -> int:
    """The next size whose only prime factors are 2, 3 and 5 (a multiple of 256), which transforms fast."""
    best = 1 << max(samples - 1, 1).bit_length()
    for scale in (1, 3, 5, 9, 15):
        size = scale * 256
        while size < samples:
            size *= 2
        best = min(best, size)
    return best
