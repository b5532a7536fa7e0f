"""Log spectra: the features of Ramesh et al. 2023, 256 bins of a short-time Fourier transform every 10 ms."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from server.lab.corpora.utterance import Waveform
from server.lab.training.data import Features

BINS = 256
_WINDOW, _SHIFT, _FFT = 400, 160, 512
_FLOOR = 1e-6  # of power; below what 16 bits resolve


def log_spectra(waveform: Waveform) -> Features:
    """Natural log of the power in 256 bins of 31.25 Hz without the constant one, [F, 256] float32. waveform: [S]
    float32 at 16 kHz. 25 ms hann windows every 10 ms, the first at sample 0; F = 1 + (S - 400) // 160, and one frame
    for what is shorter than a window."""
    padded = np.pad(waveform, (0, max(0, _WINDOW - waveform.size)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_SHIFT]
    spectrum = np.fft.rfft(windows * _window(), _FFT)[:, 1:]
    return np.log(spectrum.real**2 + spectrum.imag**2 + _FLOOR).astype(np.float32)


@cache
def _window() -> NDArray[np.float32]:
    return np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
