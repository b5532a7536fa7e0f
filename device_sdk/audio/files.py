"""Audio files: WAV, FLAC, OGG and what else libsndfile reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.resampling import Resampler, check_sample_rate
from device_sdk.audio.waveform import SAMPLE_RATE, check_waveform
from device_sdk.errors import AudioError

__all__ = ["AUDIO_SUFFIXES", "list_audio", "read_audio"]

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff")


def read_audio(
    path: str | Path, *, sample_rate: int = SAMPLE_RATE, mono: bool = False, strict: bool = False
) -> NDArray[np.float32]:
    """A file's waveform: [S] float32 in [-1, 1] at ``sample_rate`` Hz.

    mono: mix several channels down to one; without it they are refused.
    strict: refuse a file of another rate instead of resampling it.
    Raises :class:`AudioError` that names the file.
    """
    import soundfile

    path = Path(path)
    if not path.is_file():
        raise AudioError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}, expected an audio file")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, TypeError, ValueError, MemoryError) as error:
        # TypeError: .raw, which has no header. ValueError, MemoryError: a header that claims more than can be.
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise AudioError(f"{path}: cannot be read as audio ({reason}); expected WAV, FLAC or OGG") from error
    channels = samples.shape[1]
    if channels != 1 and not mono:
        raise AudioError(f"{path}: found {channels} channels, expected one; mix them down, or ask for it (mono)")
    if rate != sample_rate and strict:
        raise AudioError(f"{path}: found a sample rate of {rate} Hz, expected {sample_rate}; resample the file")
    check_sample_rate(rate, str(path))
    waveform = check_waveform(samples[:, 0] if channels == 1 else samples.mean(axis=1), str(path))
    return Resampler(rate, sample_rate, str(path)).feed(waveform, last=True)


def list_audio(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are given; of a folder, the audio files anywhere below it, by name.

    Raises :class:`AudioError` for a folder that holds none.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES and file.is_file())
        if not inside:
            raise AudioError(f"{path}: found no audio file in this folder, expected {', '.join(AUDIO_SUFFIXES)}")
        files += inside
    return files
