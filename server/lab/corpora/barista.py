"""Real commands to a coffee machine (Picovoice speech-to-intent-benchmark, Apache-2.0), with labelled slots.

PATH holds ``barista.jsonl`` and ``audio/ID.flac``. The slots are ground truth. The text was recovered by aligning a
grammar, so its carrier words are weak: rows marked ``suspicious`` do not count word errors. Speakers are the clusters
``voice_group``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from device_sdk.errors import DataError
from device_sdk.feedback.slots import SlotLexicon
from server.lab.corpora.files import load_audio, read_jsonl, required_folder
from server.lab.corpora.utterance import Corpus, Utterance

__all__ = ["read_barista"]


def read_barista(path: Path) -> Corpus:
    """Every row of ``barista.jsonl``, in its order. Raises DataError naming file, line and field."""
    manifest = path / "barista.jsonl"
    audio = required_folder(path / "audio", "the recordings named in barista.jsonl")
    utterances = tuple(
        _utterance(row, f"{manifest}, row {number}", audio) for number, row in enumerate(read_jsonl(manifest), 1)
    )
    if not utterances:
        raise DataError(f"{manifest}: holds no rows")
    lexicon = SlotLexicon.from_labels(utterance.slots for utterance in utterances if utterance.slots is not None)
    return Corpus(f"barista:{path}", utterances, lexicon)


def _utterance(row: dict[str, Any], where: str, audio: Path) -> Utterance:
    for name, kind in (("id", str), ("text", str), ("slots", dict), ("voice_group", str)):
        if not isinstance(row.get(name), kind):
            raise DataError(f"{where}, field {name!r}: found {row.get(name)!r}, expected a {kind.__name__}")
    return Utterance(
        id=row["id"],
        speaker=row["voice_group"],
        text=row["text"],
        slots={str(name): str(value) for name, value in row["slots"].items()},
        score_words=row.get("suspicious") is None,
        audio=partial(load_audio, audio / f"{row['id']}.flac"),
    )
