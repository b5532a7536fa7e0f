"""What training does to log-mel features afresh at every use: vocal tract, tempo, channel, noise floor, masks.

F: frames (10 ms); M: mel bins. Everything takes and gives raw log-mel [F, M] float32 and a numpy Generator. Rooms,
background sounds and loudness are the waveform's business (``server.lab.corpora``); this is what is cheap to draw anew.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import check_interval

Features = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Augmentation:
    """How strongly features are changed. tract: largest relative change of the vocal tract's length; tempo: largest
    relative change of speed. gain: largest change of level, nats of power; channel: standard deviation of the frequency
    response, nats. noise: share of utterances with a raised noise floor. time_masks, time_width: how many, and the
    longest in frames; bin_masks, bin_width: likewise in mel bins (SpecAugment, Park et al. 2019). A mask holds the
    training data's mean."""

    tract: float = 0.12
    tempo: float = 0.18
    gain: float = 2.0
    channel: float = 0.6
    noise: float = 0.4
    time_masks: int = 2
    time_width: int = 18
    bin_masks: int = 2
    bin_width: int = 10

    def __post_init__(self) -> None:
        for name, interval in {"tract": "[0, 0.3]", "tempo": "[0, 0.5]", "noise": "[0, 1]"}.items():
            check_interval(f"augmentation.{name}", getattr(self, name), interval)


def augment(features: Features, mean: Features, settings: Augmentation, generator: np.random.Generator) -> Features:
    """One fresh variant of an utterance; the number of frames changes with the tempo."""
    out = stretch(features, 1.0 + generator.uniform(-settings.tempo, settings.tempo))
    out = warp(out, 1.0 + generator.uniform(-settings.tract, settings.tract))
    out = out + _channel(out.shape[1], settings.channel, generator)
    if generator.random() < settings.noise:
        out = _raise_floor(out, generator)
    out = out + np.float32(generator.uniform(-settings.gain, settings.gain))
    return mask(out, mean, settings, generator)


def stretch(features: Features, factor: float) -> Features:
    """Speak ``factor`` times faster, by linear interpolation in time."""
    frames = features.shape[0]
    if frames < 2:
        return features
    position = np.linspace(0, frames - 1, max(2, round(frames / factor)), dtype=np.float32)
    left = np.minimum(position.astype(np.int64), frames - 2)
    share = (position - left).astype(np.float32)[:, None]
    return features[left] * (1 - share) + features[left + 1] * share


def warp(features: Features, factor: float) -> Features:
    """Scale all frequencies by about ``factor`` (vocal tract length perturbation, Jaitly and Hinton 2013)."""
    return features @ _warping(features.shape[1], round(factor, 2))


def mask(features: Features, mean: Features, settings: Augmentation, generator: np.random.Generator) -> Features:
    """SpecAugment: bands of time and of frequency become the mean. Time masks are at most a tenth of the utterance."""
    out = features.copy()
    frames, bins = out.shape
    longest = min(settings.time_width, frames // 10)
    for _ in range(settings.time_masks):
        width = int(generator.integers(0, longest + 1))
        start = int(generator.integers(0, frames - width + 1))
        out[start : start + width] = mean
    for _ in range(settings.bin_masks):
        width = int(generator.integers(0, min(settings.bin_width, bins) + 1))
        start = int(generator.integers(0, bins - width + 1))
        out[:, start : start + width] = mean[start : start + width]
    return out


def _channel(bins: int, strength: float, generator: np.random.Generator) -> Features:
    """A smooth random frequency response [M]: a few cosines over the mel scale."""
    order = np.arange(1, 5)
    weights = generator.normal(0.0, strength, order.size) / np.sqrt(order)
    return (weights @ np.cos(np.pi * order[:, None] * (np.arange(bins) + 0.5) / bins)).astype(np.float32)


def _raise_floor(features: Features, generator: np.random.Generator) -> Features:
    """Add steady noise with a random smooth spectrum, 5 to 30 dB below the loud parts."""
    level = np.percentile(features, 95) - generator.uniform(5.0, 30.0) / 10.0 * np.log(10.0)
    spectrum = level + _channel(features.shape[1], 0.8, generator)
    wobble = generator.normal(0.0, 0.4, features.shape).astype(np.float32)
    return np.logaddexp(features, spectrum.astype(np.float32) + wobble)


@cache
def _warping(bins: int, factor: float) -> Features:
    """[M, M] interpolation between mel bins. Slaney's scale: linear below 1 kHz, logarithmic above, 0 to 8 kHz."""
    log_step = np.log(6.4) / 27.0
    top = 15.0 + np.log(8.0) / log_step
    mel = np.linspace(0.0, top, bins + 2)[1:-1]
    hertz = np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * log_step))
    # The top of the band is left in place, so that warping never reads past it.
    source = hertz / factor
    knee = 7000.0
    source = np.where(source > knee * min(1.0, 1.0 / factor), hertz, source)
    above = 15.0 + np.log(np.maximum(source, 1.0) / 1000.0) / log_step
    source_mel = np.where(source < 1000.0, source * 3.0 / 200.0, above)
    position = np.clip(source_mel / top * (bins + 1) - 1.0, 0.0, bins - 1.0)
    left = np.minimum(position.astype(np.int64), bins - 2)
    matrix, column = np.zeros((bins, bins), np.float32), np.arange(bins)
    matrix[left, column] = 1.0 - (position - left)
    matrix[left + 1, column] += position - left
    return matrix
