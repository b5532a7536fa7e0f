"""Audio files: WAV, FLAC, OGG, MP3 and what else libsndfile reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.waveform import SAMPLE_RATE, Resampler, check_sample_rate, check_waveform
from device_sdk.errors import AudioError

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff")
READABLE = "WAV, FLAC, OGG or MP3"
_UNREADABLE = (".m4a", ".aac")  # a folder's are listed all the same: reading one says what to do

SAMPLE_AUDIO = Path(__file__).with_name("sample.ogg")
"""A clip to try things with: "can i have a large mocha please", 2.5 s at 16 kHz. It was made with espeak-ng (``say`` of
:mod:`server.lab.corpora.made`), in a voice that no model was trained on, and is under this package's licence."""


Audio = NDArray[np.generic] | str | Path | bytes | bytearray
"""An utterance as an app has it: samples, or a file, by its path or as its bytes."""


def read_audio(
    path: str | Path | bytes | bytearray,
    *,
    sample_rate: int = SAMPLE_RATE,
    mono: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> NDArray[np.float32]:
    """A file's waveform: [S] float32 in [-1, 1] at ``sample_rate`` Hz. path: or the bytes of a whole file. mono: mix
    several channels down to one; without it they are refused. strict: refuse a file of another rate instead of
    resampling it. name: how messages call bytes. Raises :class:`AudioError` that names the file."""
    samples, rate, name = _decoded(path, name)
    channels = samples.shape[1]
    if channels != 1 and not mono:
        raise AudioError(f"{name}: found {channels} channels, expected one; mix them down, or ask for it (mono)")
    if rate != sample_rate and strict:
        raise AudioError(f"{name}: found a sample rate of {rate} Hz, expected {sample_rate}; resample the file")
    check_sample_rate(rate, name)
    waveform = check_waveform(samples[:, 0] if channels == 1 else samples.mean(axis=1), name)
    return Resampler(rate, sample_rate, name).feed(waveform, last=True)


def given_audio(audio: Audio, sample_rate: int | None) -> tuple[NDArray[np.generic], int]:
    """Samples, [S] or [S, channels], and their rate (Hz), which files know. Raises
    :class:`AudioError` for a file that cannot be read or has another rate than ``sample_rate``, or an array without."""
    if isinstance(audio, np.ndarray):
        if sample_rate is None:
            raise AudioError(
                "sample_rate: found none, expected the rate of them in Hz, as in recognize(samples, 48_000)"
            )
        return audio, sample_rate
    samples, rate, name = _decoded(audio)
    if sample_rate is not None and sample_rate != rate:
        remedy = "as sample_rate says; leave it out: files know theirs"
        raise AudioError(f"{name}: found a sample rate of {rate} Hz, expected {sample_rate}, {remedy}")
    return samples[:, 0] if samples.shape[1] == 1 else samples, rate


def _decoded(source: str | Path | bytes | bytearray, name: str | None = None) -> tuple[NDArray[np.float32], int, str]:
    """A file's samples [S, channels], their rate and what messages call the file; name: where it is bytes."""
    import soundfile

    file: Path | BytesIO
    if isinstance(source, bytes | bytearray):
        file, expected = BytesIO(source), READABLE
        if name is None:
            name = f"audio: {len(source)} bytes"
            expected = f"the bytes of a file, {READABLE}; of bare samples make numpy.frombuffer(content, numpy.int16), "
            expected += "and say their sample rate"
    elif isinstance(source, str | Path):
        name, file, expected = str(source), Path(source), READABLE
        if not file.is_file():
            raise AudioError(f"{name}: {'is a folder' if file.is_dir() else 'no such file'}, expected an audio file")
    else:
        raise AudioError(f"audio: found {type(source).__name__}, expected a numpy array, a path or the bytes of a file")
    readable = os.fsencode(file) if isinstance(file, Path) and os.name == "posix" else file  # names need not be UTF-8
    try:
        samples, rate = soundfile.read(readable, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, TypeError, ValueError, MemoryError) as error:
        # TypeError: .raw, which has no header. ValueError, MemoryError: a header that claims more than can be.
        if _is_aac(file):
            place = name if isinstance(file, Path) else "FILE"
            raise AudioError(
                f"{name}: is AAC (m4a, mp4), which cannot be read, expected {READABLE}; make a WAV file of it: "
                f"ffmpeg -i {place} -ac 1 -ar 16000 {place}.wav"
            ) from error
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise AudioError(f"{name}: cannot be read as audio ({reason}); expected {expected}") from error
    return samples, rate, name


def _is_aac(file: Path | BytesIO) -> bool:
    """Whether it begins as MPEG-4 or as a bare stream of AAC does."""
    try:
        with file.open("rb") if isinstance(file, Path) else BytesIO(file.getvalue()) as content:
            head = content.read(8)
    except OSError:
        return False
    return head[4:] == b"ftyp" or (head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xF6 == 0xF0)


def list_audio(paths: Iterable[str | Path]) -> list[Path]:
    """Files as given; of a folder, the audio files anywhere below it, by name. :class:`AudioError`: there is none."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        wanted = (*AUDIO_SUFFIXES, *_UNREADABLE)
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in wanted and file.is_file())
        if not inside:
            raise AudioError(f"{path}: found no audio file in this folder, expected {', '.join(AUDIO_SUFFIXES)}")
        files += inside
    return files
