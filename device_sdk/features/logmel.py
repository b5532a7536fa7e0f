"""Streaming log-mel features: a pure function of (chunk, remainder), so that any chunking gives the same frames.

By default the settings are those of sherpa-onnx for NeMo's models: 25 ms hann window, 10 ms shift, Slaney mel scale,
pre-emphasis 0.97, no DC removal, ``snip_edges=False`` (frame t is centred at (t + 0.5) * shift and the edges are
reflected); :data:`KALDI` are those for icefall's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import NUMBER, check_choice, check_interval, check_type

Float = NDArray[np.float32]
Window = Literal["hann", "povey"]
Scale = Literal["slaney", "kaldi"]
HIGHEST_RATE = 384_000  # Hz
_LEAST = np.finfo(np.float32).eps
SILENCE = float(np.log(_LEAST))
"""Log-mel of samples that are all zero, nats."""
_MOST = 32  # frames at once: more leave the cache, and wake every thread that numpy's BLAS has, to wait for each other


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """How waveforms become log-mel frames. Frequencies in Hz, lengths in samples. window_type: hann, or povey, which is
    hann to the power of 0.85. remove_dc: take the mean from every window. mel_scale: slaney's have equal areas, kaldi's
    heights."""

    sample_rate: int = 16_000
    mel_bins: int = 64
    window: int = 400
    shift: int = 160
    low_frequency: float = 0.0
    high_frequency: float = 8_000.0
    preemphasis: float = 0.97
    window_type: Window = "hann"
    remove_dc: bool = False
    mel_scale: Scale = "slaney"

    def __post_init__(self) -> None:
        for name in ("sample_rate", "mel_bins", "window", "shift"):
            check_type(f"features.{name}", getattr(self, name), int, "a whole number")
        for name in ("low_frequency", "high_frequency", "preemphasis"):
            check_type(f"features.{name}", getattr(self, name), NUMBER, "a number")
        check_interval("features.mel_bins", self.mel_bins, "[1, inf)")
        check_interval("features.sample_rate", self.sample_rate, f"[1, {HIGHEST_RATE}]")
        check_interval("features.window", self.window, f"[1, {self.sample_rate}]")
        check_interval("features.shift", self.shift, f"[1, {self.window}]")
        check_interval("features.high_frequency", self.high_frequency, f"(0, {self.sample_rate / 2}]")
        check_interval("features.low_frequency", self.low_frequency, f"[0, {self.high_frequency})")
        check_interval("features.preemphasis", self.preemphasis, "[0, 1]")
        check_choice("features.window_type", self.window_type, get_args(Window))
        check_choice("features.mel_scale", self.mel_scale, get_args(Scale))
        check_type("features.remove_dc", self.remove_dc, bool, "true or false")

    @property
    def fft_size(self) -> int:
        return 1 << (self.window - 1).bit_length()


KALDI = FeatureSettings(
    mel_bins=80, low_frequency=20.0, high_frequency=7_600.0, window_type="povey", remove_dc=True, mel_scale="kaldi"
)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What streaming must remember between chunks. samples: [S] float32, waveform from the first sample that a coming
    frame still needs. started: whether the left edge has been reflected, which needs a window."""

    samples: Float
    started: bool = False


EMPTY = Remainder(np.zeros(0, np.float32))


def frames(
    chunk: Float, remainder: Remainder = EMPTY, settings: FeatureSettings = FeatureSettings()
) -> tuple[Float, Remainder]:
    """Frames that are complete once ``chunk`` has arrived. S: samples; T: frames; M: mel bins. chunk: [S] float32 mono
    in [-1, 1]. Returns ([T, M] float32 log-mel, remainder for the next call)."""
    samples = np.concatenate([remainder.samples, chunk]) if remainder.samples.size else np.asarray(chunk, np.float32)
    started = remainder.started
    if not started:
        edge = _left_edge(settings)
        if samples.size < settings.window:
            return np.zeros((0, settings.mel_bins), np.float32), Remainder(samples, False)
        samples = np.concatenate([samples[:edge][::-1], samples])
        started = True
    count = max(0, (samples.size - settings.window) // settings.shift + 1)
    return _transform(samples, count, settings), Remainder(samples[count * settings.shift :].copy(), started)


def flush(remainder: Remainder, settings: FeatureSettings = FeatureSettings()) -> Float:
    """Frames at the end of the stream, whose windows reach past the last sample: the right edge is reflected. Returns
    [T, M] float32. All calls together give floor((S + shift / 2) / shift) frames, as Kaldi does."""
    samples = remainder.samples
    edge = _left_edge(settings)
    if not remainder.started:
        if samples.size == 0:
            return np.zeros((0, settings.mel_bins), np.float32)
        total = samples.size
        samples = _reflect(samples, edge, settings.window)
        count = (total + settings.shift // 2) // settings.shift
        return _transform(samples, count, settings)
    # `samples` starts at the next frame's window; real samples end at samples.size.
    count = max(0, (samples.size - edge + settings.shift // 2) // settings.shift)
    samples = np.concatenate([samples, samples[::-1][: settings.window]])
    return _transform(samples, count, settings)


def logmel(waveform: Float, settings: FeatureSettings = FeatureSettings()) -> Float:
    """Features of a whole waveform [S] float32: [T, M] float32."""
    body, remainder = frames(np.asarray(waveform, np.float32), EMPTY, settings)
    return np.concatenate([body, flush(remainder, settings)])


def _left_edge(settings: FeatureSettings) -> int:
    return settings.window // 2 - settings.shift // 2


def _reflect(samples: Float, left: int, right: int) -> Float:
    """Reflect both edges, as often as a waveform shorter than the window needs."""
    index = np.arange(-left, samples.size + right)
    period = 2 * samples.size
    index = np.mod(index, period)
    return samples[np.where(index < samples.size, index, period - 1 - index)]


def _transform(samples: Float, count: int, settings: FeatureSettings) -> Float:
    """The first ``count`` windows of ``samples``: [T, M] float32."""
    if count <= 0:
        return np.zeros((0, settings.mel_bins), np.float32)
    if count > _MOST:
        found = np.empty((count, settings.mel_bins), np.float32)
        for at in range(0, count, _MOST):
            few = min(_MOST, count - at)
            found[at : at + few] = _transform(samples[at * settings.shift :], few, settings)
        return found
    samples = samples[: (count - 1) * settings.shift + settings.window]
    window, mel, size = _tables(settings)
    emphasized = samples[:-1] * np.float32(-settings.preemphasis)
    emphasized += samples[1:]
    # Within a window the first sample has no predecessor, and needs none: both windows begin with 0.
    framed = np.zeros((count, size), np.float32)
    windows = _overlapping(emphasized, count, settings, settings.window - 1)
    if settings.remove_dc:
        means: Float = np.add.reduce(_overlapping(samples, count, settings, settings.window), axis=1, keepdims=True)
        means *= np.float32((1.0 - settings.preemphasis) / settings.window)
        windows = windows - means
    np.multiply(windows, window, out=framed[:, 1 : settings.window])
    # The window holds the factor that "forward" divides by: a power of two, which changes no digit. Without "forward"
    # numpy would scale by the integer 1, and with an integer it works in float64.
    parts = np.fft.rfft(framed, norm="forward").astype(np.complex64, copy=False).view(np.float32)
    np.multiply(parts, parts, out=parts)
    energy = (parts[:, ::2] + parts[:, 1::2]) @ mel
    np.maximum(energy, _LEAST, out=energy)
    return np.log(energy, out=energy)


def _overlapping(samples: Float, count: int, settings: FeatureSettings, width: int) -> Float:
    """A view of the first ``count`` windows, [T, width]; numpy's own sliding view costs more than the transform."""
    step = samples.itemsize
    return np.ndarray((count, width), np.float32, samples, 0, (settings.shift * step, step))


@cache
def _tables(settings: FeatureSettings) -> tuple[Float, Float, int]:
    """The window without its first sample, times the transform's size, [window - 1] float32; mel filters; that size."""
    n, size, povey = np.arange(1, settings.window), settings.fft_size, settings.window_type == "povey"
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / (settings.window - 1 if povey else settings.window))
    window = size * (np.maximum(window, 0.0) ** 0.85 if povey else window)
    return window.astype(np.float32), mel_filters(settings), size


@cache
def mel_filters(settings: FeatureSettings) -> Float:
    """Triangles, [fft_size / 2 + 1, M] float32: Slaney's, or Kaldi's, which rise and fall linearly in mel."""
    frequencies = np.linspace(0.0, settings.sample_rate / 2, settings.fft_size // 2 + 1)
    low, high = np.asarray(settings.low_frequency), np.asarray(settings.high_frequency)
    if settings.mel_scale == "kaldi":
        points, axis = np.linspace(_kaldi_mel(low), _kaldi_mel(high), settings.mel_bins + 2), _kaldi_mel(frequencies)
    else:
        mel, axis = np.linspace(_slaney_mel(low), _slaney_mel(high), settings.mel_bins + 2), frequencies
        above = _BREAK_HERTZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
        points = np.where(mel < _BREAK_MEL, mel * _LINEAR_STEP, above)
    lower, centre, upper = points[:-2, None], points[1:-1, None], points[2:, None]
    triangles = np.maximum(0.0, np.minimum((axis - lower) / (centre - lower), (upper - axis) / (upper - centre)))
    if settings.mel_scale == "slaney":
        triangles *= 2.0 / (upper - lower)
    return np.ascontiguousarray(triangles.T.astype(np.float32))


def _kaldi_mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1127.0 * np.log1p(hertz / 700.0)


# Slaney's auditory toolbox: linear below 1 kHz, logarithmic above.
_LINEAR_STEP = 200.0 / 3.0
_BREAK_HERTZ = 1_000.0
_BREAK_MEL = _BREAK_HERTZ / _LINEAR_STEP
_LOG_STEP = np.log(6.4) / 27.0


def _slaney_mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_MEL + np.log(np.maximum(hertz, 1e-9) / _BREAK_HERTZ) / _LOG_STEP
    return np.where(hertz < _BREAK_HERTZ, hertz / _LINEAR_STEP, above)
