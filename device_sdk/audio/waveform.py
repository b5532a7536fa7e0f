"""What counts as a waveform, and other sample rates brought to the one that the features need."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import AudioError

if TYPE_CHECKING:
    from soxr import ResampleStream

SAMPLE_RATE = 16_000
_FLOATS, _INT16 = (np.dtype(np.float32), np.dtype(np.float64)), np.dtype(np.int16)
_INT16_SCALE = np.float32(1.0 / 32_768.0)
_MOST_CHANNELS = 32
_LOUDEST = 16.0  # resampled full-scale noise overshoots 1 a little; 16-bit values in floats overshoot it a lot


def check_waveform(samples: NDArray[np.generic], name: str = "audio", *, mix_down: bool = False) -> NDArray[np.float32]:
    """Mono samples as float32 in [-1, 1]. samples: [S] float32, float64, or int16, which is divided by 32768. name: how
    messages call it. mix_down: of [S, channels], as microphones and files give it, take the mean over the channels.
    Raises :class:`AudioError` that says what was found and what was expected: another type or dtype, more than one
    channel, NaN or infinite values, values that are not scaled to [-1, 1]."""
    if not isinstance(samples, np.ndarray):
        raise AudioError(f"{name}: found {type(samples).__name__}, expected a numpy array of float32, float64 or int16")
    samples = np.asarray(samples)  # of a subclass, such as a masked array, the plain values
    if samples.dtype not in (*_FLOATS, _INT16):
        expected = "float32 or float64 in [-1, 1], or int16; convert it before feeding it"
        raise AudioError(f"{name}: found dtype {samples.dtype}, expected {expected}")
    if samples.ndim != 1 and not mix_down:
        raise AudioError(
            f"{name}: found shape {samples.shape}, expected one channel, [samples]; "
            "mix the channels down first, or ask for it (mix_down)"
        )
    if samples.ndim != 1 and not (samples.ndim == 2 and 1 <= samples.shape[1] <= _MOST_CHANNELS):
        raise AudioError(
            f"{name}: found shape {samples.shape}, expected [samples] or [samples, channels] of 1 to {_MOST_CHANNELS} "
            "channels; transpose it where channels come first"
        )
    if samples.dtype == _INT16:
        return _mono(samples.astype(np.float32) * _INT16_SCALE)
    if samples.size:
        # min and max see every NaN and infinity, without a temporary array.
        low, high = float(np.minimum.reduce(samples, axis=None)), float(np.maximum.reduce(samples, axis=None))
        if not (isfinite(low) and isfinite(high)):
            index = np.unravel_index(int(np.argmin(np.isfinite(samples))), samples.shape)
            raise AudioError(f"{name}: found {samples[index]} at sample {index[0]}, expected finite values in [-1, 1]")
        if max(-low, high) > _LOUDEST:
            raise AudioError(
                f"{name}: found values from {low:.4g} to {high:.4g}, expected [-1, 1]; "
                "pass 16-bit samples as int16, or divide them by 32768"
            )
    return _mono(samples.astype(np.float32, copy=False))


def _mono(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    return samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)


LOWEST_RATE, HIGHEST_RATE = 4_000, 384_000


def check_sample_rate(rate: int, name: str = "audio") -> int:
    """Raises :class:`AudioError` for a rate (Hz) that is no integer from 4000 to 384000."""
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        expected = f"an integer from {LOWEST_RATE} to {HIGHEST_RATE}"
        raise AudioError(f"{name}: found sample rate {rate!r} Hz, expected {expected}")
    return int(rate)


class Resampler:
    """Owns one stream of samples at ``source`` Hz that come out at ``target`` Hz, the same for any chunking."""

    def __init__(self, source: int, target: int = SAMPLE_RATE, name: str = "audio") -> None:
        self.source, self.target = check_sample_rate(source, name), check_sample_rate(target, name)
        self._stream: ResampleStream | None = None

    def feed(self, samples: NDArray[np.float32], last: bool = False) -> NDArray[np.float32]:
        """samples: [S] float32 at ``source`` Hz. Returns [S'] float32, those that are complete. ``last`` ends the
        stream; the next call starts another one."""
        if self.source == self.target:
            return samples
        if self._stream is None:
            from soxr import ResampleStream

            self._stream = ResampleStream(self.source, self.target, 1, dtype="float32")
        resampled: NDArray[np.float32] = self._stream.resample_chunk(samples, last=last)
        if last:
            self._stream = None
        return resampled
