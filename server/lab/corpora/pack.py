"""Speech for a machine that trains, in a folder of a given size: recordings as Ogg Opus and one manifest.

Voices for development and base training alone are taken. Where not all fit, corpora share the hours equally: the one
with the least so far gives its next voice, those for development first, then in the order of a hash. A voice is taken
whole where it fits; of the first one that does not, what fits, and its corpus gives no more."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import soundfile

from device_sdk.errors import ConfigurationError
from server.lab.corpora import Utterance, kind_of, open_corpus
from server.lab.corpora.readers import recording_of
from server.lab.corpora.roles import SPLIT, Role
from server.lab.corpora.utterance import SAMPLE_RATE

PACKED: tuple[Role, ...] = ("development", "base")

_QUALITY = 1.0 - (24 - 6) / 250
"""Of soundfile, which makes 256 to 6 kbit/s of 0 to 1."""


def pack(sources: Sequence[str], out: Path, megabytes: float) -> dict[str, dict[str, float]]:
    """Writes ``out`` with ``manifest.jsonl``, ``audio`` and ``LICENCES.txt``, to be read as KIND:out for each kind.
    sources: KIND:PATH each; megabytes: of 10^6 bytes. Returns kind -> ``voices``, ``utterances``, ``hours`` and
    ``megabytes`` that were taken. Raises ConfigurationError where ``out`` has files or a kind cannot be read again,
    DataError for sources."""
    kinds = [kind_of(source) for source in sources]
    if len(set(kinds)) < len(kinds) or not {*kinds} <= {*SPLIT, "folder"}:
        raise ConfigurationError(f"data: found {', '.join(kinds)}, expected each once, of {', '.join(SPLIT)}, folder")
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"{out}: has files; expected a new folder")
    voices = {kind: _voices(source) for kind, source in zip(kinds, sources, strict=True)}
    found = {kind: {"voices": 0.0, "utterances": 0.0, "hours": 0.0, "megabytes": 0.0} for kind in kinds}
    lines: list[str] = []
    while voices:
        kind = min(voices, key=lambda each: found[each]["hours"])
        recordings = [_encoded(utterance) for utterance in next(voices[kind], ())]
        taken = found[kind]
        for place, (row, content, seconds) in enumerate(recordings):
            name = f"audio/{kind}/{int(taken['utterances']):05d}{row.pop('suffix')}"
            line = json.dumps({"corpus": kind, **row, "audio": name}, ensure_ascii=False)
            size = (len(content) + len(line.encode()) + 1) / 1e6
            if sum(each["megabytes"] for each in found.values()) + size > megabytes:
                recordings = []
                break
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
            lines.append(line)
            taken["voices"] += place == 0
            taken["utterances"] += 1
            taken["hours"] += seconds / 3600
            taken["megabytes"] += size
        if not recordings:
            del voices[kind]
    out.mkdir(parents=True, exist_ok=True)
    licences = [SPLIT[kind]["licence"] for kind in kinds if kind in SPLIT]
    (out / "LICENCES.txt").write_text("".join(f"{licence}\n" for licence in licences), "utf-8")
    (out / "manifest.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return found


def _voices(source: str) -> Iterator[list[Utterance]]:
    """What each voice says whose words are sure."""
    for role in PACKED:
        said: dict[str, list[Utterance]] = {}
        for utterance in open_corpus(source, (role,), seed=None).utterances:
            if utterance.sure_text:
                said.setdefault(utterance.speaker, []).append(utterance)
        yield from (said[voice] for voice in sorted(said, key=lambda name: hashlib.blake2b(name.encode()).digest()))


def _encoded(utterance: Utterance) -> tuple[dict[str, Any], bytes, float]:
    """A row of the manifest with the suffix of its file, the file's content, and its seconds. What is Opus, or cannot
    become it here, stays as it is."""
    slots = {} if utterance.slots is None else {"slots": dict(utterance.slots)}
    row: dict[str, Any] = {"id": utterance.id, "speaker": utterance.speaker, "text": utterance.text, **slots}
    waveform, path = utterance.load(), recording_of(utterance)
    seconds, opus = waveform.size / SAMPLE_RATE, "OPUS" in soundfile.available_subtypes("OGG")
    if path is not None and (not opus or soundfile.info(path).subtype == "OPUS"):
        return row | {"suffix": path.suffix}, path.read_bytes(), seconds
    file = BytesIO()
    soundfile.write(file, waveform, SAMPLE_RATE, "OPUS", format="OGG", compression_level=_QUALITY)
    return row | {"suffix": ".opus"}, file.getvalue(), seconds
