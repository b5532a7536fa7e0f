"""How much the clients of a federation differ from each other, and each within itself (Gao et al. 2022, section 4).

For each measure: a recording's value is the mean over its frames; a client has the mean and the standard deviation of
its recordings. The deviation of means says how clients differ, the deviation of deviations how even they are within.

S: samples at 16 kHz; N: frames of 60 ms every 10 ms, long enough for several periods of a low voice; L: samples of a
frame, 960. Measures (Gao et al. 2022, section 4.2) take frames [N, L] float64 and give one value a frame [N].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.fft import dct
from scipy.stats import kurtosis

from device_sdk.errors import DataError
from device_sdk.features.logmel import logmel
from server.lab.corpora.utterance import SAMPLE_RATE, Utterance, Waveform

__all__ = ["MEASURES", "PUBLISHED", "Heterogeneity", "Measured", "Spread", "compare", "measure", "purity"]

MEASURES: Mapping[str, str] = {
    "loudness": "loudness",
    "log_hnr": "log HNR (dB)",
    "permutation_entropy": "permutation entropy",
    "blind_snr": "blind SNR (dB)",
}
"""Names, and how tables write them."""

PUBLISHED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "LibriSpeech": {
        "loudness": (0.017, 0.007),
        "log_hnr": (9.096, 2.31),
        "permutation_entropy": (0.040, 0.007),
        "blind_snr": (10.32, 3.82),
    },
    "Common Voice": {
        "loudness": (0.034, 0.009),
        "log_hnr": (11.466, 2.69),
        "permutation_entropy": (0.053, 0.014),
        "blind_snr": (18.47, 6.54),
    },
}
"""Gao et al. 2022's figures, (between, within). Loudness is in other units there, and purity (0.77 and 0.62) comes from
other embeddings: compare corpora within one table, not with these."""

_CEPSTRA = 20
Frames = NDArray[np.float64]
Values = NDArray[np.float64]

FRAME, SHIFT = 960, 160
VOICED = 0.5
"""Least periodicity of a voiced frame."""

_PITCH_HZ = (75.0, 500.0)
_PADDED = 2048
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Measured:
    """One recording. values: by the names of MEASURES, NaN where there is nothing to measure (no voiced frame).
    embedding: of its voice and channel, [2 * 20] float64."""

    client: str
    values: Mapping[str, float]
    embedding: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one measure. between: standard deviation of clients' means; within: of clients' standard deviations, over
    those with two recordings or more; kurtosis: excess, of clients' means; means: one a client, in the order of
    clients. NaN where there are too few."""

    between: float
    within: float
    kurtosis: float
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """Of one corpus. purity: share of recordings whose cluster belongs mostly to their own client."""

    name: str
    clients: int
    recordings: int
    spreads: Mapping[str, Spread]
    purity: float

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "clients": self.clients,
            "recordings": self.recordings,
            "purity": _plain(self.purity),
            "measures": {
                name: {
                    "between": _plain(spread.between),
                    "within": _plain(spread.within),
                    "kurtosis": _plain(spread.kurtosis),
                    "means": [_plain(mean) for mean in spread.means],
                }
                for name, spread in self.spreads.items()
            },
        }


def measure(utterance: Utterance, client: str | None = None) -> Measured:
    """All measures of one recording; its client is its speaker, unless another is given."""
    waveform = utterance.load()
    frames = frames_of(waveform)
    periodic = periodicity(frames)
    snr = blind_snr(frames[periodic >= VOICED])
    values = {
        "loudness": float(loudness(frames).mean()),
        "log_hnr": float(log_hnr(periodic).mean()),
        "permutation_entropy": float(permutation_entropy(frames).mean()),
        "blind_snr": float(snr.mean()) if snr.size else float("nan"),
    }
    return Measured(client or utterance.speaker, values, _embedding(waveform))


def compare(name: str, recordings: Iterable[Measured], seed: int = 0) -> Heterogeneity:
    """The report of one corpus. Raises DataError where there are no two clients."""
    found = list(recordings)
    clients = sorted({one.client for one in found})
    if len(clients) < 2:
        raise DataError(f"{name}: found {len(clients)} clients, expected 2 or more to compare")
    index = {client: number for number, client in enumerate(clients)}
    owners = np.array([index[one.client] for one in found])
    spreads = {
        measure: _spread(np.array([one.values[measure] for one in found]), owners, len(clients)) for measure in MEASURES
    }
    embeddings = np.stack([one.embedding for one in found])
    return Heterogeneity(name, len(clients), len(found), spreads, purity(embeddings, owners, seed))


def purity(embeddings: NDArray[np.float64], owners: Sequence[int] | NDArray[np.int64], seed: int = 0) -> float:
    """Share of points whose k-means cluster has most of its points from their own client.

    embeddings: [R, D], standardized here by column; owners: [R]. As many centroids as clients, k-means++ beginnings,
    the best of five by distortion.
    """
    held = np.asarray(owners)
    points = (embeddings - embeddings.mean(0)) / np.maximum(embeddings.std(0), 1e-9)
    count = len(np.unique(held))
    best, labels = np.inf, np.zeros(len(points), np.int64)
    for attempt in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a cluster that is left without points
            centroids, own = kmeans2(points, count, minit="++", rng=np.random.default_rng([seed, attempt]))
        distortion = float(np.sum((points - centroids[own]) ** 2))
        if distortion < best:
            best, labels = distortion, own
    right = sum(np.bincount(held[labels == label]).max() for label in np.unique(labels))
    return float(right / len(points))


def _spread(values: NDArray[np.float64], owners: NDArray[np.int64], clients: int) -> Spread:
    own = [values[(owners == client) & np.isfinite(values)] for client in range(clients)]
    means = np.array([part.mean() if part.size else np.nan for part in own])
    deviations = np.array([part.std() for part in own if part.size > 1])
    known = means[np.isfinite(means)]
    return Spread(
        float(known.std()) if known.size > 1 else float("nan"),
        float(deviations.std()) if deviations.size > 1 else float("nan"),
        float(kurtosis(known)) if known.size > 3 and known.std() > 0 else float("nan"),
        tuple(float(mean) for mean in means),
    )


def _embedding(waveform: Waveform) -> NDArray[np.float64]:
    """Mean and deviation of mel cepstra over the louder half of the frames. It stands for a trained speaker embedding:
    nothing has to be downloaded, and voice and channel both show in it."""
    mel = logmel(waveform).astype(np.float64)
    level = mel.mean(1)
    cepstra = dct(mel[level >= np.median(level)], type=2, norm="ortho", axis=1)[:, 1 : _CEPSTRA + 1]
    return np.concatenate([cepstra.mean(0), cepstra.std(0)])


def _plain(value: float) -> float | None:
    return round(value, 6) if np.isfinite(value) else None


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
