"""The speech that ships with the benchmarks, and a recognizer of the packaged bundle."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.audio import list_audio, read_audio
from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from tests.architecture.sources import ROOT

Float = NDArray[np.float32]


def packaged() -> Bundle:
    """The default bundle; the test is skipped in a tree without one."""
    try:
        return Bundle.open()
    except BundleError as error:
        pytest.skip(str(error))


def clips() -> list[Float]:
    """Six spoken sentences, [S] float32 at 16 kHz."""
    return [read_audio(path) for path in list_audio([ROOT / "export" / "benchmarks" / "speech"])]


def recordings() -> list[Float]:
    """A hundred by people who order coffee."""
    return [read_audio(path) for path in list_audio([Path(os.environ["IDIOLECT_DATA"]) / "barista" / "audio"])[:100]]


needs_data = pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
SPEECH = [clips, pytest.param(recordings, marks=[pytest.mark.data, needs_data])]


def conversation(seconds: float, seed: int = 0) -> Iterator[Float]:
    """Sentences and silences between them, some too short to end an utterance: pieces of at least so many seconds."""
    rng, spoken, samples = np.random.default_rng(seed), clips(), 0
    while samples < seconds * 16_000:
        silence = rng.choice([0.0, 1e-4]) * rng.standard_normal(int(16_000 * rng.uniform(0.3, 6.0)))
        for piece in (spoken[rng.integers(len(spoken))], silence.astype(np.float32)):
            samples += piece.size
            yield piece


def cut(pieces: Iterator[Float], longest: int, seed: int = 0) -> Iterator[Float]:
    """The same samples in chunks of 1 to ``longest`` samples."""
    rng = np.random.default_rng(seed)
    for piece in pieces:
        at = 0
        while at < piece.size:
            step = int(rng.integers(1, longest + 1))
            yield piece[at : at + step]
            at += step
