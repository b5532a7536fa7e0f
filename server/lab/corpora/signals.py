"""Low-level measures of one recording: what microphones, rooms and noise leave in it (Gao et al. 2022, section 4.2).

S: samples at 16 kHz; N: frames of 60 ms every 10 ms, long enough for several periods of a low voice; L: samples of a
frame, 960. Measures take frames [N, L] float64 and give one value a frame [N].
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from server.lab.corpora.utterance import SAMPLE_RATE, Waveform

__all__ = ["blind_snr", "frames_of", "log_hnr", "loudness", "permutation_entropy", "periodicity"]

Frames = NDArray[np.float64]
Values = NDArray[np.float64]

FRAME, SHIFT = 960, 160
VOICED = 0.5
"""Least periodicity of a voiced frame."""

_PITCH_HZ = (75.0, 500.0)
_PADDED = 2048
_TINY = 1e-12


def frames_of(waveform: Waveform) -> Frames:
    """[S] to [N, L] without the mean of each frame; a recording shorter than a frame is one, filled with zeros."""
    padded = np.pad(waveform.astype(np.float64), (0, max(0, FRAME - waveform.size)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::SHIFT]
    return np.asarray(frames - frames.mean(1, keepdims=True))


def loudness(frames: Frames) -> Values:
    """Perceived loudness, (mean square)^0.3: 1 is a square wave at full scale (Stevens' law, as openSMILE has it)."""
    return np.asarray(np.mean(frames**2, 1) ** 0.3)


def log_hnr(periodic: Values) -> Values:
    """Harmonics-to-noise ratio in dB, 10 log10(r / (1 - r)), within -40 to 40 (Boersma 1993).

    periodic: r of frames [N], by :func:`periodicity`."""
    share = np.clip(periodic, 1e-4, 1 - 1e-4)
    return np.asarray(10.0 * np.log10(share / (1.0 - share)))


def periodicity(frames: Frames) -> Values:
    """r: the highest autocorrelation at a lag of 75 to 500 Hz, over that at no lag, 0 to 1. Hann windows, whose own
    autocorrelation is divided out."""
    window = np.hanning(FRAME)
    own = _autocorrelation(window[None])[0]
    found = _autocorrelation(frames * window)
    first, last = (round(SAMPLE_RATE / hertz) for hertz in reversed(_PITCH_HZ))
    lags = slice(first, last + 1)
    ratio = found[:, lags] / (found[:, :1] + _TINY) / (own[lags] / own[0])
    return np.clip(ratio.max(1), 0.0, 1.0)


def permutation_entropy(frames: Frames, order: int = 3) -> Values:
    """Entropy of the orders in which ``order`` samples in a row come, over its maximum log(order!), 0 to 1 (Bandt and
    Pompe 2002). Of samples that are alike the earlier counts as the lower."""
    length = frames.shape[1] - order + 1
    codes = np.zeros((len(frames), length), np.int64)
    pairs = list(combinations(range(order), 2))
    for bit, (earlier, later) in enumerate(pairs):  # which of each pair is lower names the order
        codes += (frames[:, earlier : earlier + length] <= frames[:, later : later + length]).astype(np.int64) << bit
    rows = np.arange(len(frames))[:, None] << len(pairs)
    counts = np.bincount((rows + codes).ravel(), minlength=len(frames) << len(pairs)).reshape(len(frames), -1)
    shares = counts / counts.sum(1, keepdims=True)
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), 1)
    return np.asarray(entropy / math.log(math.factorial(order)))


def blind_snr(frames: Frames, order: int = 10) -> Values:
    """10 log10 of a frame's energy over that of what linear prediction of ``order`` leaves of it, in dB.

    Coefficients come from each frame's own autocorrelation. Read it on voiced frames, which a predictor can follow.
    """
    window = np.hanning(FRAME)
    found = _autocorrelation(frames * window)[:, : order + 1]
    lags = np.abs(np.arange(order)[:, None] - np.arange(order))
    matrices = found[:, lags] + (1e-9 * found[:, :1, None] + _TINY) * np.eye(order)
    coefficients = np.linalg.solve(matrices, found[:, 1:, None])[..., 0]
    past = np.lib.stride_tricks.sliding_window_view(frames[:, :-1], order, axis=1)[:, :, ::-1]
    noise = frames[:, order:] - np.einsum("nto,no->nt", past, coefficients)
    signal = np.sum(frames[:, order:] ** 2, 1)
    return np.asarray(10.0 * np.log10((signal + _TINY) / (np.sum(noise**2, 1) + _TINY)))


def _autocorrelation(frames: Frames) -> Frames:
    """[N, L], at lags 0 to L - 1."""
    spectrum = np.fft.rfft(frames, _PADDED, axis=1)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2, _PADDED, axis=1)[:, :FRAME])
