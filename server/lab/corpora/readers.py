"""Readers of real recordings: coffee orders, spoken digits, and a user's own folder.

Barista (Picovoice speech-to-intent-benchmark, Apache-2.0): PATH holds ``barista.jsonl`` and ``audio/ID.flac``. Slots
are the ground truth. The text was recovered by aligning a grammar, so its carrier words are weak: rows marked
``suspicious`` do not count word errors. Speakers are the clusters ``voice_group``.

FSDD (Free Spoken Digit Dataset, CC BY-SA 4.0): PATH holds ``recordings/{digit}_{speaker}_{index}.flac`` (or .wav) at 8
kHz. A seed decides how they are joined to strings of 4 to 7 digits of one speaker: each recording is used once, in a
random order, and the last few of a speaker that make no string of 4 are left out.

Every other kind, and what ``idiolect corpora pack`` writes of any: PATH holds ``manifest.jsonl`` (one object a line:
``audio`` (relative to PATH), and where known ``text``, ``speaker``, ``slots``, ``id``; ``corpus`` where it holds
several kinds, to read one of). Common Voice knows no speakers: a hundredth of its sentences stands for one.

Folder: the same, or any tree of audio files, each with its words in a file of the same name ending in
``.txt``; then the speaker is the first folder below PATH, or the name of PATH itself. Words are brought into their one
form (:mod:`device_sdk.transcripts`)."""

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from device_sdk.errors import DataError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.transcripts import transcript
from server.lab.corpora.roles import voice_of
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform

AUDIO_SUFFIXES = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".aiff", ".aif")

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.(?:flac|wav)")
_SHORTEST, _LONGEST = 4, 7
_GAP_SECONDS = (0.05, 0.25)
_EDGE_SECONDS = 0.3
_NOISE_RMS = 3e-4


def read_barista(path: Path) -> Corpus:
    """Every row of ``barista.jsonl``, in its order. Raises DataError naming file, line and field."""
    manifest = path / "barista.jsonl"
    audio = required_folder(path / "audio", "the recordings named in barista.jsonl")
    utterances = []
    for number, row in enumerate(read_jsonl(manifest), 1):
        for name, kind in (("id", str), ("text", str), ("slots", dict), ("voice_group", str)):
            if not isinstance(row.get(name), kind):
                where = f"{manifest}, row {number}, field {name!r}"
                raise DataError(f"{where}: found {row.get(name)!r}, expected a {kind.__name__}")
        slots = {name: str(value) for name, value in row["slots"].items()}
        load = partial(load_audio, audio / f"{row['id']}.flac")
        sure = row.get("suspicious") is None
        utterances.append(Utterance(row["id"], row["voice_group"], row["text"], slots, sure, load))
    if not utterances:
        raise DataError(f"{manifest}: holds no rows")
    return _corpus(f"barista:{path}", utterances)


def _corpus(name: str, utterances: Sequence[Utterance]) -> Corpus:
    """With a lexicon of the slots that are labelled, if any are."""
    labels = [utterance.slots for utterance in utterances if utterance.slots is not None]
    return Corpus(name, tuple(utterances), SlotLexicon.from_labels(labels) if labels else None)


def digit_files(path: Path) -> list[tuple[str, int, int, Path]]:
    """(speaker, digit, index, file) of each recording, sorted. Raises DataError where there are none."""
    folder = required_folder(path / "recordings", "Free Spoken Digit Dataset files such as 7_george_3.flac")
    matches = ((_NAME.fullmatch(file.name), file) for file in folder.iterdir())
    files = sorted((match[2], int(match[1]), int(match[3]), file) for match, file in matches if match)
    if not files:
        raise DataError(f"{folder}: no file is named like 7_george_3.flac (digit, speaker, index)")
    return files


def read_fsdd(path: Path, seed: int | None = 0) -> Corpus:
    """Strings of digits, speaker by speaker; without a seed every digit by itself. No slot labels. Raises DataError
    where no recordings are found."""
    utterances: list[Utterance] = []
    if seed is None:
        for speaker, digit, index, file in digit_files(path):
            name, audio = f"{speaker}-{digit}.{index}", partial(load_audio, file)
            utterances.append(Utterance(name, speaker, DIGITS[digit], None, True, audio))
        return Corpus(f"fsdd:{path}", tuple(utterances))
    for number, (speaker, recordings) in enumerate(groupby(digit_files(path), key=lambda row: row[0])):
        generator, files = np.random.default_rng([seed, number]), [row[1:] for row in recordings]
        order = [files[index] for index in generator.permutation(len(files))]
        while len(order) >= _SHORTEST:
            length = int(generator.integers(_SHORTEST, _LONGEST + 1))
            string, order = order[:length], order[length:]
            audio = partial(_joined, tuple(file for _, _, file in string), (seed, number, len(utterances)))
            name = f"{speaker}-" + "-".join(f"{digit}.{index}" for digit, index, _ in string)
            text = " ".join(DIGITS[digit] for digit, _, _ in string)
            utterances.append(Utterance(name, speaker, text, None, True, audio))
    return Corpus(f"fsdd:{path}", tuple(utterances))


def _joined(files: tuple[Path, ...], seed: tuple[int, ...]) -> Waveform:
    generator = np.random.default_rng(seed)
    edge = np.zeros(int(_EDGE_SECONDS * SAMPLE_RATE), np.float32)
    pieces: list[Waveform] = [edge, load_audio(files[0])]
    for file in files[1:]:
        pieces += [np.zeros(int(generator.uniform(*_GAP_SECONDS) * SAMPLE_RATE), np.float32), load_audio(file)]
    joined = np.concatenate([*pieces, edge])
    noise = generator.standard_normal(joined.size, dtype=np.float32) * np.float32(_NOISE_RMS)
    return np.clip(joined + noise, -1.0, 1.0)


def read_folder(path: Path, kind: str = "folder") -> Corpus:
    """The recordings below a folder, sorted by name or in the manifest's order. kind: of corpus. Raises DataError where
    there is none."""
    required_folder(path, "audio files with .txt files beside them, or a manifest.jsonl")
    manifest = path / "manifest.jsonl"
    if manifest.is_file():
        rows = [(number, row) for number, row in enumerate(read_jsonl(manifest), 1) if row.get("corpus", kind) == kind]
        utterances = [_from_row(row, f"{manifest}, row {number}", path, kind) for number, row in rows]
    else:
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
        utterances = [_from_file(file, path) for file in files]
    if not utterances:
        raise DataError(
            f"{path}: no audio file ({', '.join(AUDIO_SUFFIXES)}) and no rows of {kind} in a manifest.jsonl"
        )
    return _corpus(f"{kind}:{path}", utterances)


def _from_file(file: Path, root: Path) -> Utterance:
    relative, words = file.relative_to(root), file.with_suffix(".txt")
    try:
        said = words.read_text(encoding="utf-8") if words.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{words}: cannot be read ({error}); expected UTF-8 text") from error
    name, speaker = relative.with_suffix("").as_posix(), relative.parts[0] if len(relative.parts) > 1 else None
    text = None if said is None else transcript(said, str(words), DataError)
    return Utterance(name, speaker or root.resolve().name, text, None, said is not None, partial(load_audio, file))


def _from_row(row: dict[str, Any], where: str, root: Path, kind: str) -> Utterance:
    audio, text, slots = row.get("audio"), row.get("text"), row.get("slots")
    if not isinstance(audio, str) or not (root / audio).is_file():
        raise DataError(f"{where}, field 'audio': found {audio!r}, expected the name of a file below {root}")
    if slots is not None and not isinstance(slots, dict):
        raise DataError(f"{where}, field 'slots': found {slots!r}, expected an object of slot type to value")
    if text is not None:
        text = transcript(text, f"{where}, field 'text'", DataError)
    if slots is not None:
        slots = {
            type_: transcript(said, f"{where}, field 'slots', {type_!r}", DataError) for type_, said in slots.items()
        }
    name, speaker = str(row.get("id", audio)), str(row.get("speaker", root.resolve().name))
    return Utterance(
        name, voice_of(kind, speaker, text), text, slots, text is not None, partial(load_audio, root / audio)
    )


def recording_of(utterance: Utterance) -> Path | None:
    """The file of an utterance that is a whole recording as it is."""
    audio = utterance.audio
    return audio.args[0] if isinstance(audio, partial) and audio.func is load_audio else None


def load_audio(path: Path) -> Waveform:
    """A file as mono float32 [S] in [-1, 1] at 16 kHz; channels are averaged. Raises DataError naming the file."""
    try:
        samples, native = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise DataError(f"{path}: not a readable audio file ({error})") from error
    waveform = samples.mean(axis=1, dtype=np.float32)
    if waveform.size == 0:
        raise DataError(f"{path}: holds no samples")
    if not np.isfinite(waveform).all():
        raise DataError(f"{path}: holds samples that are not numbers (NaN or infinite)")
    return waveform if native == SAMPLE_RATE else soxr.resample(waveform, native, SAMPLE_RATE).astype(np.float32)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises DataError naming file and line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    rows: list[dict[str, Any]] = []
    for number, line in ((number, line) for number, line in enumerate(lines, 1) if line.strip()):
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
