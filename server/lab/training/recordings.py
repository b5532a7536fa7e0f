"""Recordings to train on: held in memory, trimmed, single words joined to strings. S: samples at 16 kHz."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import DataError
from server.lab.corpora.acoustics import pad
from server.lab.corpora.utterance import SAMPLE_RATE, Utterance, Waveform

SPOKEN = "spoken"
"""The source of what a machine spoke, in no room."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An utterance for training. kept: float16 [S] at 16 kHz, since hours of them lie in memory twice. source: the
    corpus's kind, or :data:`SPOKEN`."""

    kept: NDArray[np.float16] = field(repr=False)
    text: str
    speaker: str
    source: str

    @property
    def waveform(self) -> Waveform:
        """float32 [S]."""
        return self.kept.astype(np.float32)


def record(utterances: Iterable[Utterance], source: str) -> list[Recording]:
    """Load the utterances whose words are sure. Raises DataError when none is left."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding leaves Python's lock
        loaded = pool.map(lambda one: (one, one.load()), [one for one in utterances if one.sure_text])
        recordings = [Recording(w.astype(np.float16), one.sure_text, one.speaker, source) for one, w in loaded]
    if not recordings:
        raise DataError(f"{source}: found no utterance with a sure text; choose other speakers")
    return recordings


def trim(waveform: Waveform, generator: np.random.Generator) -> Waveform:
    """Cut a random part of the quiet before and after the speech, but never closer than 0.12 seconds to it."""
    block = SAMPLE_RATE // 100
    energy = np.square(waveform[: waveform.size // block * block]).reshape(-1, block).mean(1)
    if energy.size == 0 or not energy.any():
        return waveform
    loud = (energy > 0.003 * np.percentile(energy, 97)).nonzero()[0] * block
    guard = int(0.12 * SAMPLE_RATE)
    start = int(generator.uniform(0, max(0, int(loud[0]) - guard)))
    end = int(generator.uniform(0, max(0, waveform.size - int(loud[-1]) - block - guard)))
    return waveform[start : waveform.size - end]


def join(words: Sequence[Recording], count: int, generator: np.random.Generator) -> tuple[Waveform, str]:
    """A string of ``count`` one-word recordings, drawn at random, with gaps of 0 to 0.35 s."""
    chosen = [words[index] for index in generator.integers(len(words), size=count)]
    usual = generator.uniform(0.0, 0.25)
    pieces = []
    for recording in chosen:
        waveform = recording.waveform * np.float32(generator.uniform(0.7, 1.3))
        pieces.append(pad(waveform, 0.0, max(0.0, usual + generator.uniform(-0.1, 0.1))))
    return np.concatenate(pieces).astype(np.float32), " ".join(recording.text for recording in chosen)
