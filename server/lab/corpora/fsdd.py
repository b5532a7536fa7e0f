"""Real spoken digits (Free Spoken Digit Dataset, CC BY-SA 4.0), joined to strings of 4 to 7 digits of one speaker.

PATH holds ``recordings/{digit}_{speaker}_{index}.flac`` (or .wav) at 8 kHz. A seed decides the strings: each recording
is used once, in a random order, and the last few of a speaker that make no string of 4 are left out.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from device_sdk.errors import DataError
from server.lab.corpora.files import load_audio, required_folder
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform

__all__ = ["DIGITS", "digit_files", "read_fsdd"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.(?:flac|wav)")
_SHORTEST, _LONGEST = 4, 7
_GAP_SECONDS = (0.05, 0.25)
_EDGE_SECONDS = 0.3
_NOISE_RMS = 3e-4


def digit_files(path: Path) -> list[tuple[str, int, int, Path]]:
    """(speaker, digit, index, file) of each recording, sorted. Raises DataError where there are none."""
    folder = required_folder(path / "recordings", "Free Spoken Digit Dataset files such as 7_george_3.flac")
    matches = ((_NAME.fullmatch(file.name), file) for file in folder.iterdir())
    files = sorted((match[2], int(match[1]), int(match[3]), file) for match, file in matches if match)
    if not files:
        raise DataError(f"{folder}: no file is named like 7_george_3.flac (digit, speaker, index)")
    return files


def read_fsdd(path: Path, seed: int = 0) -> Corpus:
    """Strings of digits, speaker by speaker. No slot labels. Raises DataError where no recordings are found."""
    utterances: list[Utterance] = []
    for number, (speaker, recordings) in enumerate(groupby(digit_files(path), key=lambda row: row[0])):
        generator = np.random.default_rng([seed, number])
        files = [row[1:] for row in recordings]
        order = [files[index] for index in generator.permutation(len(files))]
        start = 0
        while len(order) - start >= _SHORTEST:
            length = min(int(generator.integers(_SHORTEST, _LONGEST + 1)), len(order) - start)
            string = order[start : start + length]
            start += length
            utterances.append(_join(speaker, string, seed, number, len(utterances)))
    return Corpus(f"fsdd:{path}", tuple(utterances))


def _join(
    speaker: str, string: list[tuple[int, int, Path]], seed: int, speaker_number: int, position: int
) -> Utterance:
    return Utterance(
        id=f"{speaker}-" + "-".join(f"{digit}.{index}" for digit, index, _ in string),
        speaker=speaker,
        text=" ".join(DIGITS[digit] for digit, _, _ in string),
        slots=None,
        score_words=True,
        audio=partial(_audio, tuple(file for _, _, file in string), (seed, speaker_number, position)),
    )


def _audio(files: tuple[Path, ...], seed: tuple[int, ...]) -> Waveform:
    generator = np.random.default_rng(seed)
    edge = np.zeros(int(_EDGE_SECONDS * SAMPLE_RATE), np.float32)
    pieces: list[Waveform] = [edge]
    for file in files:
        if len(pieces) > 1:
            pieces.append(np.zeros(int(generator.uniform(*_GAP_SECONDS) * SAMPLE_RATE), np.float32))
        pieces.append(load_audio(file))
    joined = np.concatenate([*pieces, edge])
    noise = generator.standard_normal(joined.size, dtype=np.float32) * np.float32(_NOISE_RMS)
    return np.clip(joined + noise, -1.0, 1.0)
