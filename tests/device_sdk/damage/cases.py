"""Damaged inputs, each made from a seed and a number: what a device does with one, and how that must end.

A case ends well in an :class:`IdiolectError` or in a valid result, and leaves the state folder as the last thing that
succeeded left it. Everything else is raised as :class:`Wrong`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from device_sdk import Bundle, Corrected, Device, DeviceSettings, IdiolectError, LearningSettings
from device_sdk.audio import read_audio
from device_sdk.bundle.subsets import SUBSETS, Subset, frozen_file, training_file
from device_sdk.checkin import identity
from device_sdk.decoding import DecodingSettings
from device_sdk.hypothesis import Result
from device_sdk.state import Store, outbox, records
from tests.bounds import ANYTHING
from tests.signals import chirp, noise

__all__ = ["KINDS", "Ground", "Wrong", "kind_of", "run"]

KEY = bytes(range(32))
SERVER = "https://server.example"
SETTINGS = DeviceSettings(
    bounds=ANYTHING,
    decoding=DecodingSettings(beam=4, nbest=4),
    learning=LearningSettings(passes=1, hypotheses=2, wait_seconds=0.0),
)
SOUND = chirp(6_400, 3)
LONG_TEXT = 10_000
BOMB = 300_000_000  # bytes that a small gzip file unpacks to
LOADED = ("weights.safetensors", "tokenizer.model", "words.txt", "background.safetensors", "rescoring.json")
KINDS = ("hash", "fit", "fit", "hash", "fit", "hash", "waveform", "file", "state", "model")
"""Kinds of cases, in turn: files of a bundle as damaged, or with the manifest made to fit; waveforms; audio files; the
state folder; a published model."""

Generator = np.random.Generator
Bytes = Callable[[bytes, Generator], bytes]


class Wrong(Exception):
    """A case that ended in neither a named error nor a valid result, or changed the state folder."""


def kind_of(case: int) -> str:
    return KINDS[case % len(KINDS)]


@dataclass(frozen=True)
class Ground:
    """What cases are made from: a whole bundle, the state of a device that has learned, audio files by name."""

    bundle: Bundle
    bundle_files: dict[str, bytes]
    state_files: dict[str, bytes]
    audio_files: dict[str, bytes]
    scratch: Path

    @classmethod
    def lay(cls, bundle_folder: Path, scratch: Path) -> Ground:
        """Everything whole. scratch: a folder for copies, emptied by every case."""
        bundle = Bundle.open(bundle_folder)
        state = scratch / "whole"
        with Device.open(state, KEY, bundle, SETTINGS) as device:
            for seed in range(2):
                result = device.recognize(chirp(4_800, seed), 16_000)
                device.feedback(result.utterance_id, Corrected("turn on the light"))
            device.learn()
            device.recognize(SOUND, 16_000)
            store = device._store
            records.write_marginals(store, 3, bundle.words.digest, bundle.background)
            who = identity.create(store, SERVER)
            outbox.keep(store, outbox.Outgoing("r1", SERVER, "marginals", "round", b"body", b"rest"))
            identity.keep_id(store, who, "device-1")
        whole = cls(bundle, _contents(bundle_folder), _contents(state), _audio_files(), scratch)
        shutil.rmtree(state)
        return whole


def run(ground: Ground, seed: int, case: int) -> str:
    """Runs one case in an empty scratch folder. Returns "valid" or the name of the error it ended in.

    Raises whatever else came of it, which is a failure.
    """
    rng = np.random.default_rng([seed, case])
    shutil.rmtree(ground.scratch, ignore_errors=True)
    ground.scratch.mkdir(parents=True)
    try:
        _CASES[kind_of(case)](ground, rng)
    except IdiolectError as error:
        if not str(error).strip():
            raise Wrong(f"{type(error).__name__} says nothing") from error
        return type(error).__name__
    return "valid"


# Bundles


def _bundle_as_damaged(ground: Ground, rng: Generator) -> None:
    _use_bundle(ground, rng, fit=False)


def _bundle_with_hashes_that_fit(ground: Ground, rng: Generator) -> None:
    _use_bundle(ground, rng, fit=True)


def _use_bundle(ground: Ground, rng: Generator, *, fit: bool) -> None:
    files = dict(ground.bundle_files)
    graphs = sorted(name for name in ground.bundle.manifest.files if name.endswith(".onnx"))
    names = [*LOADED, *graphs, *sorted(files)]  # what is loaded is drawn more often
    name = names[rng.integers(len(names))]
    subset = _subset_of(name)
    int8 = (subset is None and name.endswith(".int8.onnx")) or rng.random() < 0.1
    if (name == "manifest.json" and rng.random() < 0.7) or (name == "rescoring.json" and rng.random() < 0.5):
        files[name] = _other_values(files[name], rng)
    elif name.endswith(".safetensors") and rng.random() < 0.5:
        files[name] = _header_lies(files[name], rng)
    elif name == "ngram.arpa" and rng.random() < 0.5:
        files[f"{name}.gz"] = _gzipped(files.pop(name), rng)
    elif rng.random() < 0.04 and name != "manifest.json":
        del files[name]
    elif rng.random() < 0.05:
        files[name] = files[sorted(files)[rng.integers(len(files))]]
    else:
        files[name] = _damaged(files[name], rng)
    if fit and name != "manifest.json":
        files["manifest.json"] = _fitting(files, "next" if rng.random() < 0.2 else None)
    folder = ground.scratch / "bundle"
    if rng.random() < 0.1:
        content = _zipped(files, rng)
        folder.write_bytes(content if fit else _damaged(content, rng))
    else:
        _write(folder, files)
    state = ground.scratch / "state"
    _write(state, ground.state_files)
    before = _rows(state)
    learning = replace(SETTINGS.learning, subset=subset or "whole")
    settings = replace(SETTINGS, precision="int8" if int8 else "float32", learning=learning)
    try:
        bundle = Bundle.open(folder)
        device = Device.open(state, KEY, bundle, settings)
    except IdiolectError:
        _same_rows(before, state, "opening a device failed")
        raise
    with device:
        learns = subset is not None or name in ("weights.safetensors", "manifest.json") or rng.random() < 0.1
        _live(device, state, before, learns, carried=_names(bundle) == _names(ground.bundle))


def _subset_of(name: str) -> Subset | None:
    """What a device must learn so that it runs this graph; None for what learning does not run."""
    return next((subset for subset in SUBSETS if name in (training_file(subset), frozen_file(subset))), None)


def _names(bundle: Bundle) -> tuple[str, str]:
    return bundle.manifest.name, bundle.version


def _live(
    device: Device, state: Path, before: dict[tuple[str, str], bytes], learning: bool, carried: bool = True
) -> None:
    """An utterance, its feedback, a step. What fails leaves the state as it was."""
    try:
        result = device.recognize(SOUND, 16_000)
    except IdiolectError:
        _same_rows(before, state, "an utterance could not be recognized")
        raise
    _valid(result)
    after = _rows(state)
    if carried:  # a bundle of another version drops what was learned from the last one
        _same_rows(_but_counts(before), _but_counts(after), "an utterance was recognized")
    device.feedback(result.utterance_id, Corrected("turn on the light"))
    device.learned()
    after = _rows(state)
    if not learning:
        return
    try:
        device.learn()
    except IdiolectError:
        _same_rows(after, state, "a step failed")
        raise
    for name, value in device.student.weights.items():
        if not np.isfinite(value).all():
            raise Wrong(f"learned a weight {name} that is not finite")


def _gzipped(plain: bytes, rng: Generator) -> bytes:
    way = rng.random()
    if way < 0.04:
        return gzip.compress(bytes(BOMB), 1, mtime=0)
    return _damaged(gzip.compress(plain, mtime=0), rng) if way < 0.5 else gzip.compress(_damaged(plain, rng), mtime=0)


def _fitting(files: dict[str, bytes], version: str | None) -> bytes:
    """The manifest with the hashes of these files, and another version of the bundle where one is given."""
    manifest = json.loads(files["manifest.json"])
    manifest["version"] = version or manifest["version"]
    manifest["files"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
        if name != "manifest.json"
    }
    return json.dumps(manifest).encode()


def _zipped(files: dict[str, bytes], rng: Generator) -> bytes:
    content = io.BytesIO()
    how = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[rng.integers(2)]
    with zipfile.ZipFile(content, "w", how, compresslevel=1) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


# Audio


def _waveform(ground: Ground, rng: Generator) -> None:
    rate = int(rng.choice([16_000, 16_000, 8_000, 44_100, 48_000, 11_025]))
    if rng.random() < 0.05:
        rate = [0, -1, 1, 2**40, 16_000.5, "16000", None, True, float("nan")][rng.integers(9)]  # type: ignore[assignment]
    state = ground.scratch / "state"
    _write(state, ground.state_files)
    with Device.open(state, KEY, ground.bundle, SETTINGS) as device:
        before = _rows(state)
        session = device.session(rate)
        refused: IdiolectError | None = None
        for _ in range(rng.integers(1, 5)):
            heard = session.partial().seconds
            try:
                partial = session.feed(_samples(rng))
                _valid_text(partial.text)
            except IdiolectError as error:
                refused = error
                if session.partial().seconds != heard:
                    raise Wrong("audio that was refused moved the session on") from error
        _same_rows(before, state, "nothing was finished")
        _valid(session.finish())
        _same_rows(_but_counts(before), _but_counts(_rows(state)), "an utterance was finished")
        if rng.random() < 0.1:
            device.learn()
        if refused is not None:
            raise refused


def _samples(rng: Generator) -> NDArray[np.generic]:
    length = int(rng.choice([0, 1, 2, 159, 160, 161, 399, 400, 401, 1_600, 4_800, 8_000]))
    wave = noise(length, int(rng.integers(1 << 30))) if rng.random() < 0.5 else chirp(length, int(rng.integers(99)))
    at = int(rng.integers(max(1, length)))
    choice = int(rng.integers(22))
    if choice < 5 and length:
        special = [np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.float32(1e-42)][choice]
        wave[at : at + int(rng.integers(1, length + 1))] = special
        return wave
    makes: list[Callable[[], object]] = [
        lambda: wave,
        lambda: np.zeros(length, np.float32),
        lambda: np.zeros(length, np.int16),
        lambda: np.full(length, -32_768, np.int16),
        lambda: np.full(length, 16.0, np.float32),
        lambda: wave * np.float32(1e4),
        lambda: wave.astype(np.float64),
        lambda: wave.astype(np.float16),
        lambda: wave.astype(np.int32),
        lambda: (wave * 100).astype(np.uint8),
        lambda: wave.astype(np.complex64),
        lambda: wave.astype(object),
        lambda: wave.astype("S4"),
        lambda: wave > 0,
        lambda: np.stack([wave, wave]),
        lambda: wave[:, None],
        lambda: np.float32(0.5),
        lambda: np.array(0.5, np.float32),
        lambda: wave.tolist(),
        lambda: wave.tobytes(),
        lambda: None,
        lambda: wave[::-2],
        lambda: wave.astype(">f4"),
        lambda: (wave * 1000).astype(">i2"),
        lambda: np.frombuffer(wave.tobytes() + b"", np.float32),
        lambda: np.ma.masked_array(wave, wave > 0),
        lambda: np.zeros((0, 2), np.float32),
        lambda: np.array(["2026-01-01"], "datetime64[D]"),
    ]
    return makes[rng.integers(len(makes))]()  # type: ignore[return-value]


def _audio_files() -> dict[str, bytes]:
    formats = {
        "a.wav": ("WAV", "PCM_16"),
        "float.wav": ("WAV", "FLOAT"),
        "adpcm.wav": ("WAV", "IMA_ADPCM"),
        "a.flac": ("FLAC", "PCM_16"),
        "a.ogg": ("OGG", "VORBIS"),
        "a.opus": ("OGG", "OPUS"),
        "a.mp3": ("MP3", "MPEG_LAYER_III"),
        "a.aiff": ("AIFF", "PCM_16"),
    }
    found = {}
    for name, (container, subtype) in formats.items():
        content = io.BytesIO()
        soundfile.write(content, SOUND, 16_000, format=container, subtype=subtype)
        found[name] = content.getvalue()
    return found


def _audio_file(ground: Ground, rng: Generator) -> None:
    name = sorted(ground.audio_files)[rng.integers(len(ground.audio_files))]
    content = ground.audio_files[name]
    # Half of the damage is done to the header, which says how much there is.
    split = 64 if rng.random() < 0.5 else len(content)
    content = _damaged(content[:split], rng) + content[split:]
    path = ground.scratch / name
    path.write_bytes(content)
    waveform = read_audio(path, mono=bool(rng.integers(2)))[:16_000]
    state = ground.scratch / "state"
    _write(state, ground.state_files)
    before = _rows(state)
    with Device.open(state, KEY, ground.bundle, SETTINGS) as device:
        try:
            _valid(device.recognize(waveform, 16_000))
        except IdiolectError:
            _same_rows(before, state, "an utterance could not be recognized")
            raise


# State folders and published models


def _state(ground: Ground, rng: Generator) -> None:
    state = ground.scratch / "state"
    if rng.random() < 0.3:
        _write(state, ground.state_files)
        _damage_value(state, rng)
    else:
        files = dict(ground.state_files)
        name = sorted(files)[rng.integers(len(files))] if rng.random() < 0.2 else "state.sqlite"
        if rng.random() < 0.05:
            del files[name]
        elif rng.random() < 0.1:
            files["state.sqlite-wal"] = rng.bytes(int(rng.integers(1, 40_000)))
        else:
            files[name] = _damaged(files[name], rng)
        _write(state, files)
    before = _contents(state)
    try:
        device = Device.open(state, KEY, ground.bundle, SETTINGS)
    except IdiolectError:
        after = _contents(state)
        if before.get("state.sqlite", b"") and before["state.sqlite"] != after.get("state.sqlite"):
            raise Wrong("a state that cannot be opened was changed") from None
        raise
    with device:
        store = device._store
        result = device.recognize(SOUND, 16_000)
        _valid(result)
        device.learned()
        device.feedback(result.utterance_id, Corrected("turn on the light"))
        identity.load(store, SERVER)
        outbox.waiting(store, SERVER)
        if rng.random() < 0.3:
            device.learn()
    Device.open(state, KEY, ground.bundle, SETTINGS).close()  # what it wrote can be read


def _damage_value(state: Path, rng: Generator) -> None:
    """One value is another, sealed with the right key: what a fault of memory or of an older version would leave."""
    store = Store(state, KEY)
    try:
        places = [(table, name) for table in ("counts", "marginals", "weights", "outbox", "identity", "settings")
                  for name in store.names(table)]  # fmt: skip
        table, name = places[rng.integers(len(places))]
        content = store.get(table, name) or b""
        if table in ("settings", "identity", "counts") and rng.random() < 0.5:
            content = _other_values(content, rng)
        else:
            content = (
                _header_lies(content, rng) if table == "weights" and rng.random() < 0.5 else _damaged(content, rng)
            )
        store.put(table, name, content)
    finally:
        store.close()


def _model(ground: Ground, rng: Generator) -> None:
    content = ground.bundle_files["weights.safetensors"]
    content = _header_lies(content, rng) if rng.random() < 0.5 else _damaged(content, rng)
    state = ground.scratch / "state"
    _write(state, ground.state_files)
    with Device.open(state, KEY, ground.bundle, SETTINGS) as device:
        before = _rows(state)
        try:
            device._model_state.adopt(records.Published("next", content), keep=0.8)
        except IdiolectError:
            _same_rows(before, state, "a model was refused")
            raise
        _live(device, state, _rows(state), rng.random() < 0.3)
    Device.open(state, KEY, ground.bundle, SETTINGS).close()


_CASES: dict[str, Callable[[Ground, Generator], None]] = {
    "hash": _bundle_as_damaged,
    "fit": _bundle_with_hashes_that_fit,
    "waveform": _waveform,
    "file": _audio_file,
    "state": _state,
    "model": _model,
}


# Damage


def _damaged(content: bytes, rng: Generator) -> bytes:
    """Bytes flipped, missing, added, overwritten, moved; one to a few times."""
    ways: tuple[Bytes, ...] = (_flip, _flip, _flip, _bits, _cut, _drop, _insert, _overwrite, _zero, _move, _repeat)
    for _ in range(1 if rng.random() < 0.7 else int(rng.integers(2, 6))):
        content = ways[rng.integers(len(ways))](content, rng)
    return content


def _flip(content: bytes, rng: Generator) -> bytes:
    data = bytearray(content)
    if data:
        for at in rng.integers(len(data), size=int(rng.integers(1, 9))):
            data[at] ^= int(rng.integers(1, 256))
    return bytes(data)


def _bits(content: bytes, rng: Generator) -> bytes:
    data = bytearray(content)
    if data:
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _span(content: bytes, rng: Generator) -> tuple[int, int]:
    start = int(rng.integers(len(content) + 1))
    longest = (8, 100, len(content) + 1)[rng.integers(3)]
    return start, min(len(content), start + int(rng.integers(1, longest + 1)))


def _cut(content: bytes, rng: Generator) -> bytes:
    return content[: int(rng.integers(len(content) + 1))]


def _drop(content: bytes, rng: Generator) -> bytes:
    start, stop = _span(content, rng)
    return content[:start] + content[stop:]


def _insert(content: bytes, rng: Generator) -> bytes:
    start, _ = _span(content, rng)
    return content[:start] + rng.bytes(int(rng.integers(1, 64))) + content[start:]


def _overwrite(content: bytes, rng: Generator) -> bytes:
    start, stop = _span(content, rng)
    return content[:start] + rng.bytes(stop - start) + content[stop:]


def _zero(content: bytes, rng: Generator) -> bytes:
    start, stop = _span(content, rng)
    return content[:start] + bytes(stop - start) + content[stop:]


def _move(content: bytes, rng: Generator) -> bytes:
    start, stop = _span(content, rng)
    rest = content[:start] + content[stop:]
    at = int(rng.integers(len(rest) + 1))
    return rest[:at] + content[start:stop] + rest[at:]


def _repeat(content: bytes, rng: Generator) -> bytes:
    start, stop = _span(content, rng)
    return content[:stop] + content[start:stop] + content[stop:]


VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**70, -(2**63), 10**30, 0.5, -0.5, 1e308, math.inf, -math.inf,
    math.nan, "", "x", "1", "\x00", "../up", "é" * 300, [], [1], [[[]]], {}, {"a": 1},
)  # fmt: skip


def _other_values(content: bytes, rng: Generator) -> bytes:
    """JSON of which one value, or one name, is another."""
    try:
        document = json.loads(content)
    except ValueError:
        return _damaged(content, rng)
    holder, key = document, None
    while isinstance(holder, dict | list) and len(holder):
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[rng.integers(len(keys))]
        if not isinstance(holder[key], dict | list) or not len(holder[key]) or rng.random() < 0.15:
            break
        holder = holder[key]
    if key is None:
        return json.dumps(VALUES[rng.integers(len(VALUES))]).encode()
    way = rng.random()
    if way < 0.1:
        del holder[key]
    elif way < 0.15 and isinstance(holder, dict):
        holder["other"] = holder.pop(key)
    elif way < 0.35 and isinstance(holder[key], int | float):
        holder[key] = type(holder[key])(holder[key] * 2 if way < 0.25 else holder[key] - 1)
    else:
        holder[key] = VALUES[rng.integers(len(VALUES))]
    return json.dumps(document).encode()


def _header_lies(content: bytes, rng: Generator) -> bytes:
    """A safetensors file whose header is another, or whose numbers are NaN, infinite, or huge."""
    size = int.from_bytes(content[:8], "little")
    header, body = content[8 : 8 + size], bytearray(content[8 + size :])
    way = int(rng.integers(4))
    if way == 0:
        lie = int(rng.choice([0, 1, size - 1, size + 1, len(content), 2**31, 2**63 - 1]))
        return lie.to_bytes(8, "little") + header + bytes(body)
    if way == 1:
        header = _other_values(header, rng)
    elif way == 2:
        kinds = [b"F64", b"F16", b"BF16", b"I8", b"U64", b"BOOL", b"F8_E4M3", b"X"]
        header = header.replace(b"F32", kinds[rng.integers(len(kinds))], int(rng.integers(1, 9)))
    elif len(body) >= 4:
        values = np.frombuffer(body, "<f4")
        at = int(rng.integers(len(values)))
        stop = at + int(rng.integers(1, (2, len(values) + 1)[rng.integers(2)]))
        values[at:stop] = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e30, 1e-42, 0.0][rng.integers(8)]
    return len(header).to_bytes(8, "little") + header + bytes(body)


# What is looked at


def _valid(result: Result) -> None:
    if not result.nbest:
        raise Wrong("a result without a hypothesis")
    for hypothesis in result.nbest:
        _valid_text(hypothesis.text)
        scores = hypothesis.scores
        parts = (hypothesis.score, scores.acoustic, scores.ngram, scores.neural, scores.personal, scores.hotword)
        if not all(math.isfinite(part) for part in parts):
            raise Wrong(f"a score that is not finite: {parts}")
        if not all(0.0 <= word.start <= word.end and math.isfinite(word.end) for word in hypothesis.words):
            raise Wrong(f"word times {[(word.start, word.end) for word in hypothesis.words]}")


def _valid_text(text: str) -> None:
    text.encode()
    if len(text) > LONG_TEXT:
        raise Wrong(f"a text of {len(text)} characters for a second of audio")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _rows(state: Path) -> dict[tuple[str, str], bytes]:
    """Every sealed value of a state folder, read beside its owner."""
    connection = sqlite3.connect(f"file:{state / 'state.sqlite'}?mode=ro", uri=True)
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            (table, name): value or (state / file[0]).read_bytes()
            for table in tables
            if table != "sqlite_sequence"
            for name, value, *file in connection.execute(
                f"SELECT name, value{'' if table == 'meta' else ', file'} FROM {table}"
            )
        }
    finally:
        connection.close()


def _but_counts(rows: dict[tuple[str, str], bytes]) -> dict[tuple[str, str], bytes]:
    return {place: value for place, value in rows.items() if place[0] != "counts"}


def _same_rows(before: dict[tuple[str, str], bytes], after: Path | dict[tuple[str, str], bytes], when: str) -> None:
    rows = _rows(after) if isinstance(after, Path) else after
    changed = [place for place in before.keys() | rows.keys() if before.get(place) != rows.get(place)]
    if changed:
        raise Wrong(f"{when}, but the state folder changed: {sorted(changed)}")
