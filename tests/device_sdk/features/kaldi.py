"""The same features by kaldi-native-fbank."""

from __future__ import annotations

import kaldi_native_fbank
import numpy as np


def kaldi(waveform: np.ndarray, window: str = "hann", top: float = 8_000.0) -> np.ndarray:
    """waveform: [S] float32 at 16 kHz; top: the highest frequency, Hz, below 0 from the Nyquist frequency. Returns
    [T, 64] float32."""
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = 16_000
    options.frame_opts.dither = 0.0
    options.frame_opts.window_type = window
    options.frame_opts.snip_edges = False
    options.frame_opts.remove_dc_offset = False
    options.mel_opts.num_bins = 64
    options.mel_opts.low_freq = 0.0
    options.mel_opts.high_freq = top
    options.mel_opts.is_librosa = True
    online = kaldi_native_fbank.OnlineFbank(options)
    online.accept_waveform(16_000, waveform.tolist())
    online.input_finished()
    rows = [online.get_frame(i) for i in range(online.num_frames_ready)]
    return np.array(rows, np.float32).reshape(-1, 64)
