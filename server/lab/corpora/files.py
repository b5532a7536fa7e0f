"""Audio and JSON-lines files as the readers need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from device_sdk.errors import DataError
from server.lab.corpora.utterance import SAMPLE_RATE, Waveform

__all__ = ["AUDIO_SUFFIXES", "load_audio", "read_jsonl", "required_folder"]

AUDIO_SUFFIXES = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".aiff", ".aif")


def load_audio(path: Path, rate: int = SAMPLE_RATE) -> Waveform:
    """A file as mono float32 [S] in [-1, 1] at ``rate``; channels are averaged. Raises DataError naming the file."""
    try:
        samples, native = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise DataError(f"{path}: not a readable audio file ({error})") from error
    waveform = samples.mean(axis=1, dtype=np.float32)
    if waveform.size == 0:
        raise DataError(f"{path}: holds no samples")
    if not np.isfinite(waveform).all():
        raise DataError(f"{path}: holds samples that are not numbers (NaN or infinite)")
    return waveform if native == rate else soxr.resample(waveform, native, rate).astype(np.float32)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises DataError naming file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: found a {type(row).__name__}, expected an object")
        rows.append(row)
    return rows


def required_folder(path: Path, what: str) -> Path:
    """The path if it is a folder; else DataError saying what it should hold."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; expected {what}")
    return path
