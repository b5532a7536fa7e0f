"""SLURP (Bastianelli et al. 2020) as lhotse manifests; lhotse has no recipe of it.

PATH holds the repository's ``dataset/slurp/{train,devel,test}.jsonl`` and ``dataset/slurp/metadata.json``, and the
audio in ``audio/slurp_real`` (``slurp_synth`` for ``train_synthetic``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

from device_sdk.errors import DataError
from server.lab.corpora.files import read_jsonl, required_folder
from server.lab.training.pieces import clean

__all__ = ["PARTS", "prepare_slurp"]

PARTS = ("train", "devel", "test", "train_synthetic")

_SLOT = re.compile(r"\[\s*([^:\]]+?)\s*:\s*([^\]]+?)\s*\]")


def prepare_slurp(path: Path, part: str) -> tuple[RecordingSet, SupervisionSet]:
    """Recordings, and one supervision for each. Those whose file is missing are left out.

    Each has its speaker (``usrid`` of the metadata; one name for all without it), its words, and in
    ``custom`` the intent (``scenario_action``) and the slots of the annotated sentence, type -> words. Raises DataError
    naming file and field.
    """
    listed = path / "dataset" / "slurp" / f"{part}.jsonl"
    if part not in PARTS or not listed.is_file():
        raise DataError(f"{listed}: no such file; parts of SLURP are {', '.join(PARTS)}")
    audio = required_folder(
        path / "audio" / ("slurp_synth" if part == "train_synthetic" else "slurp_real"), "SLURP's recordings"
    )
    speakers = _speakers(path / "dataset" / "slurp" / "metadata.json")
    recordings, supervisions = [], []
    for number, row in enumerate(read_jsonl(listed), 1):
        where = f"{listed}, row {number}"
        sentence, files = _field(row, "sentence", str, where), _field(row, "recordings", list, where)
        custom = {
            "intent": row.get("intent") or f"{row.get('scenario', '')}_{row.get('action', '')}",
            "slots": _slots(row.get("sentence_annotation") or ""),
        }
        for entry in files:
            name = _field(entry, "file", str, f"{where}, field 'recordings'")
            if not (audio / name).is_file():
                continue
            recording = Recording.from_file(audio / name, recording_id=Path(name).stem)
            recordings.append(recording)
            supervisions.append(
                SupervisionSegment(
                    id=recording.id,
                    recording_id=recording.id,
                    start=0.0,
                    duration=recording.duration,
                    text=sentence,
                    language="English",
                    speaker=speakers.get(name, "slurp"),
                    custom=custom,
                )
            )
    return RecordingSet.from_recordings(recordings), SupervisionSet.from_segments(supervisions)


def _field(row: Any, name: str, kind: type, where: str) -> Any:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{where}, field {name!r}: found {value!r}, expected a {kind.__name__}")
    return value


def _speakers(metadata: Path) -> dict[str, str]:
    """File name -> speaker."""
    if not metadata.is_file():
        return {}
    try:
        rows = json.loads(metadata.read_text(encoding="utf-8"))
        return {
            name: str(details["usrid"])
            for row in rows.values()
            for name, details in row.get("recordings", {}).items()
            if "usrid" in details
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{metadata}: not SLURP's metadata ({error}); expected recordings with their usrid") from error


def _slots(annotation: str) -> dict[str, str]:
    """``wake me at [time : five am]`` -> {"time": "five am"}; the last one where a type comes twice."""
    return {kind: clean(words) for kind, words in _SLOT.findall(annotation)}
