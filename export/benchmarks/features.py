"""Features: ours in numpy beside kaldi-native-fbank's in C++, both streaming in chunks of 100 ms on one thread.

Time is the processor's, which other work on the machine changes less than the clock's."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure, alternate
from device_sdk.features import FeatureSettings, Remainder, flush, frames

SECONDS, CHUNK, RUNS = 20, 1_600, 9
TARGET = 1.5


def benchmark() -> list[Figure]:
    """Frames a second of CPU, and the largest difference between the two. Medians; the runs of both alternate. The peer
    is handed lists of floats, which its binding wants; making them is not timed."""
    import kaldi_native_fbank  # noqa: F401  (so that a missing install is named before anything runs)

    waveform = _waveform(SECONDS * 16_000)
    chunks = [waveform[at : at + CHUNK] for at in range(0, len(waveform), CHUNK)]
    lists = [chunk.tolist() for chunk in chunks]
    difference, count = float(np.abs(_ours(chunks) - kaldi(lists)).max()), len(_ours(chunks))
    spent = alternate({"ours": partial(_ours, chunks), "peer": partial(kaldi, lists)}, RUNS)
    ours, peer = count / spent["ours"], count / spent["peer"]
    name = "kaldi-native-fbank"
    return [
        Figure("log-mel features, 64 bins, 100 ms chunks", "frames/s of CPU", ours, name, peer, TARGET),
        Figure("largest difference from kaldi-native-fbank", "nats", difference, target=1e-3, lower_is_better=True),
    ]


def _waveform(samples: int) -> NDArray[np.float32]:
    """Seeded harmonics with a moving pitch over noise, [samples] float32."""
    time = np.arange(samples) / 16_000
    phase = 2 * np.pi * np.cumsum(140 + 40 * np.sin(2 * np.pi * 0.7 * time)) / 16_000
    voice = sum(0.3 / k * np.sin(k * phase) for k in range(1, 20))
    noise = np.random.default_rng(0).normal(0.0, 0.01, samples)
    return np.asarray(0.5 * voice * (np.sin(2 * np.pi * 2.3 * time) > -0.3) + noise, np.float32)


def _ours(chunks: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    remainder, found = Remainder(np.zeros(0, np.float32)), []
    for chunk in chunks:
        ready, remainder = frames(chunk, remainder)
        found.append(ready)
    return np.concatenate([*found, flush(remainder)])


def kaldi(chunks: list[list[float]], settings: FeatureSettings = FeatureSettings()) -> NDArray[np.float32]:
    """[T, M] by kaldi-native-fbank."""
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = settings.sample_rate
    options.frame_opts.dither = 0.0
    options.frame_opts.window_type = settings.window_type
    options.frame_opts.snip_edges = False
    options.frame_opts.remove_dc_offset = settings.remove_dc
    options.frame_opts.preemph_coeff = settings.preemphasis
    options.mel_opts.num_bins = settings.mel_bins
    options.mel_opts.low_freq = settings.low_frequency
    options.mel_opts.high_freq = settings.high_frequency
    options.mel_opts.is_librosa = settings.mel_scale == "slaney"
    online = kaldi_native_fbank.OnlineFbank(options)
    found: list[NDArray[np.float32]] = []
    for chunk in chunks:
        online.accept_waveform(settings.sample_rate, chunk)
        found += [online.get_frame(i) for i in range(len(found), online.num_frames_ready)]
    online.input_finished()
    found += [online.get_frame(i) for i in range(len(found), online.num_frames_ready)]
    return np.stack(found)
