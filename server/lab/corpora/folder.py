"""A user's own recordings.

Either PATH holds ``manifest.jsonl`` (one object a line: ``audio`` (relative to PATH), and where known ``text``,
``speaker``, ``slots``, ``id``), or any tree of audio files, each with its words in a file of the same name ending in
``.txt``; then the speaker is the first folder below PATH, or the name of PATH itself. Words are brought into their one
form (:mod:`device_sdk.transcripts`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from device_sdk.errors import DataError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.transcripts import transcript
from server.lab.corpora.files import AUDIO_SUFFIXES, load_audio, read_jsonl, required_folder
from server.lab.corpora.utterance import Corpus, Utterance

__all__ = ["read_folder"]


def read_folder(path: Path) -> Corpus:
    """The recordings below a folder, sorted by name or in the manifest's order. Raises DataError where there is
    none."""
    required_folder(path, "audio files with .txt files beside them, or a manifest.jsonl")
    manifest = path / "manifest.jsonl"
    if manifest.is_file():
        rows = enumerate(read_jsonl(manifest), 1)
        utterances = [_from_row(row, f"{manifest}, row {number}", path) for number, row in rows]
    else:
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
        utterances = [_from_file(file, path) for file in files]
    if not utterances:
        raise DataError(f"{path}: no audio file ({', '.join(AUDIO_SUFFIXES)}) and no rows in a manifest.jsonl")
    labels = [utterance.slots for utterance in utterances if utterance.slots is not None]
    return Corpus(f"folder:{path}", tuple(utterances), SlotLexicon.from_labels(labels) if labels else None)


def _from_file(file: Path, root: Path) -> Utterance:
    relative = file.relative_to(root)
    words = file.with_suffix(".txt")
    try:
        said = words.read_text(encoding="utf-8") if words.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{words}: cannot be read ({error}); expected UTF-8 text") from error
    return Utterance(
        id=relative.with_suffix("").as_posix(),
        speaker=relative.parts[0] if len(relative.parts) > 1 else root.resolve().name,
        text=None if said is None else transcript(said, str(words), DataError),
        slots=None,
        score_words=said is not None,
        audio=partial(load_audio, file),
    )


def _from_row(row: dict[str, Any], where: str, root: Path) -> Utterance:
    audio, text, slots = row.get("audio"), row.get("text"), row.get("slots")
    if not isinstance(audio, str) or not (root / audio).is_file():
        raise DataError(f"{where}, field 'audio': found {audio!r}, expected the name of a file below {root}")
    if slots is not None and not isinstance(slots, dict):
        raise DataError(
            f"{where}, field 'slots': found {slots!r}, expected an object of slot type to value, or nothing"
        )
    return Utterance(
        id=str(row.get("id", audio)),
        speaker=str(row.get("speaker", root.resolve().name)),
        text=None if text is None else transcript(text, f"{where}, field 'text'", DataError),
        slots=None
        if slots is None
        else {name: transcript(value, f"{where}, field 'slots', {name!r}", DataError) for name, value in slots.items()},
        score_words=text is not None,
        audio=partial(load_audio, root / audio),
    )
