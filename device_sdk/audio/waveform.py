"""What counts as a waveform."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import AudioError

__all__ = ["SAMPLE_RATE", "check_waveform"]

SAMPLE_RATE = 16_000
_INT16_SCALE = np.float32(1.0 / 32_768.0)
_LOUDEST = 16.0  # resampled full-scale noise overshoots 1 a little; 16-bit values in floats overshoot it a lot


def check_waveform(samples: NDArray[np.generic], name: str = "audio") -> NDArray[np.float32]:
    """Mono samples as float32 in [-1, 1].

    samples: [S] float32, or int16, which is divided by 32768. name: how messages call it.
    Raises :class:`AudioError` that says what was found and what was expected: another type or dtype, more than one
    channel, NaN or infinite values, values that are not scaled to [-1, 1].
    """
    if not isinstance(samples, np.ndarray):
        raise AudioError(
            f"{name}: found {type(samples).__name__}, expected a numpy array [samples] of float32 or int16"
        )
    if samples.dtype not in (np.float32, np.int16):
        raise AudioError(
            f"{name}: found dtype {samples.dtype}, expected float32 in [-1, 1] or int16; convert it before feeding it"
        )
    if samples.ndim != 1:
        raise AudioError(
            f"{name}: found shape {samples.shape}, expected one channel, [samples]; mix the channels down first"
        )
    if samples.dtype == np.int16:
        return samples.astype(np.float32) * _INT16_SCALE
    if samples.size:
        # min and max see every NaN and infinity, without a temporary array.
        low, high = float(samples.min()), float(samples.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            index = int(np.argmin(np.isfinite(samples)))
            raise AudioError(f"{name}: found {samples[index]} at sample {index}, expected finite values in [-1, 1]")
        if max(-low, high) > _LOUDEST:
            raise AudioError(
                f"{name}: found values from {low:.4g} to {high:.4g}, expected [-1, 1]; "
                "pass 16-bit samples as int16, or divide them by 32768"
            )
    return samples.astype(np.float32, copy=False)
