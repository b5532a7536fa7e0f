"""Damaged inputs, each made from a seed and a number: what a device does with one, and how that must end.

A case ends well in an :class:`IdiolectError` or in a valid result, and leaves the state folder as the last thing that
succeeded left it. Everything else is raised as :class:`Wrong`."""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from device_sdk import Bundle, Device, IdiolectError
from device_sdk.bundle.architecture import SUBSETS, frozen_file, training_file
from device_sdk.checkin import identity
from device_sdk.state import Store, outbox, records
from tests.device_sdk.damage import audio
from tests.device_sdk.damage import ground as grounds
from tests.device_sdk.damage.ground import SERVER, SETTINGS, SOUND, Ground, Rows, Wrong, check_same, rows, unchanged
from tests.device_sdk.damage.harm import Generator, damaged, gzipped, lie_in_header, with_other_value
from tests.device_sdk.devices import KEY, LIGHT

LOADED = ("weights.safetensors", "tokenizer.model", "words.txt", "background.safetensors", "rescoring.json")
KINDS = ("hash", "fit", "fit", "hash", "fit", "hash", "waveform", "file", "state", "model")
"""Kinds of cases, in turn: files of a bundle as damaged, or with the manifest made to fit; waveforms; audio files; the
state folder; a published model."""


def kind_of(case: int) -> str:
    return KINDS[case % len(KINDS)]


def run(ground: Ground, seed: int, case: int) -> str:
    """Runs one case in an empty scratch folder. Returns "valid" or the name of the error it ended in. Raises whatever
    else came of it, which is a failure."""
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


def _bundle(ground: Ground, rng: Generator, *, fit: bool) -> None:
    files = dict(ground.bundle_files)
    graphs = sorted(name for name in ground.bundle.manifest.files if name.endswith(".onnx"))
    names = [*LOADED, *graphs, *sorted(files)]  # what is loaded is drawn more often
    name = names[rng.integers(len(names))]
    # What a device must learn so that it runs this graph; None for what learning does not run.
    subset = next((each for each in SUBSETS if name in (training_file(each), frozen_file(each))), None)
    int8 = (subset is None and name.endswith(".int8.onnx")) or rng.random() < 0.1
    if (name == "manifest.json" and rng.random() < 0.7) or (name == "rescoring.json" and rng.random() < 0.5):
        files[name] = with_other_value(files[name], rng)
    elif name.endswith(".safetensors") and rng.random() < 0.5:
        files[name] = lie_in_header(files[name], rng)
    elif name == "ngram.arpa" and rng.random() < 0.5:
        files[f"{name}.gz"] = gzipped(files.pop(name), rng)
    elif rng.random() < 0.04 and name != "manifest.json":
        del files[name]
    elif rng.random() < 0.05:
        files[name] = files[sorted(files)[rng.integers(len(files))]]
    else:
        files[name] = damaged(files[name], rng)
    if fit and name != "manifest.json":
        files["manifest.json"] = manifest_of(files, "next" if rng.random() < 0.2 else None)
    folder = ground.scratch / "bundle"
    if rng.random() < 0.1:
        content = _zip(files, rng)
        folder.write_bytes(content if fit else damaged(content, rng))
    else:
        grounds.write(folder, files)
    state = ground.state()
    before, learning = rows(state), replace(SETTINGS.learning, subset=subset or "whole")
    settings = replace(SETTINGS, precision="int8" if int8 else "float32", learning=learning)
    with unchanged(before, state, "opening a device failed"):
        bundle = Bundle.open(folder)
        device = Device.open(state, KEY, bundle, settings)
    with device:
        learns = subset is not None or name in ("weights.safetensors", "manifest.json") or rng.random() < 0.1
        same = (bundle.manifest.name, bundle.version) == (ground.bundle.manifest.name, ground.bundle.version)
        _live(device, state, before, learns, carried=same)


def manifest_of(files: dict[str, bytes], version: str | None) -> bytes:
    """The manifest with the hashes of these files, and another version of the bundle where one is given."""
    manifest = json.loads(files["manifest.json"])
    manifest["version"] = version or manifest["version"]
    manifest["files"] = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
        if name != "manifest.json"
    }
    return json.dumps(manifest).encode()


def _zip(files: dict[str, bytes], rng: Generator) -> bytes:
    content = io.BytesIO()
    how = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[rng.integers(2)]
    with zipfile.ZipFile(content, "w", how, compresslevel=1) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def _live(device: Device, state: Path, before: Rows, learning: bool, carried: bool = True) -> None:
    """An utterance, its feedback, a step. What fails leaves the state as it was."""
    with unchanged(before, state, "an utterance could not be recognized"):
        result = device.recognize(SOUND, 16_000)
    grounds.valid(result)
    if carried:  # a bundle of another version drops what was learned from the last one
        check_same(before, state, "an utterance was recognized", counts=False)
    device.feedback(result, LIGHT)
    device.learned()
    if learning:
        with unchanged(rows(state), state, "a step failed"):
            device.learn()
        for name, value in device.student.weights.items():
            if not np.isfinite(value).all():
                raise Wrong(f"learned a weight {name} that is not finite")


def _state(ground: Ground, rng: Generator) -> None:
    if rng.random() < 0.3:
        state = ground.state()
        _damage_value(state, rng)
    else:
        files = dict(ground.state_files)
        name = sorted(files)[rng.integers(len(files))] if rng.random() < 0.2 else "state.sqlite"
        if rng.random() < 0.05:
            del files[name]
        elif rng.random() < 0.1:
            files["state.sqlite-wal"] = rng.bytes(int(rng.integers(1, 40_000)))
        else:
            files[name] = damaged(files[name], rng)
        state = ground.state(files)
    before = grounds.contents(state)
    try:
        device = Device.open(state, KEY, ground.bundle, SETTINGS)
    except IdiolectError:
        if before.get("state.sqlite") and before["state.sqlite"] != grounds.contents(state).get("state.sqlite"):
            raise Wrong("a state that cannot be opened was changed") from None
        raise
    with device:
        result = device.recognize(SOUND, 16_000)
        grounds.valid(result)
        device.learned()
        device.feedback(result, LIGHT)
        identity.load(device._store, SERVER)
        list(outbox.waiting(device._store, SERVER))
        if rng.random() < 0.3:
            device.learn()
    Device.open(state, KEY, ground.bundle, SETTINGS).close()  # what it wrote can be read


def _damage_value(state: Path, rng: Generator) -> None:
    """One value is another, sealed with the right key: what a fault of memory or of an older version would leave."""
    store = Store(state, KEY)
    try:
        tables = ("counts", "marginals", "weights", "outbox", "identity", "settings")
        places = [(table, name) for table in tables for name in store.names(table)]
        table, name = places[rng.integers(len(places))]
        ways = {"settings": with_other_value, "identity": with_other_value, "counts": with_other_value}
        way = {**ways, "weights": lie_in_header}.get(table, damaged) if rng.random() < 0.5 else damaged
        store.put(table, name, way(store.get(table, name) or b"", rng))
    finally:
        store.close()


def _model(ground: Ground, rng: Generator) -> None:
    content = ground.bundle_files["weights.safetensors"]
    content = lie_in_header(content, rng) if rng.random() < 0.5 else damaged(content, rng)
    state = ground.state()
    with Device.open(state, KEY, ground.bundle, SETTINGS) as device:
        with unchanged(rows(state), state, "a model was refused"):
            device._model_state.adopt(records.Published("next", content), keep=0.8)
        _live(device, state, rows(state), rng.random() < 0.3)
    Device.open(state, KEY, ground.bundle, SETTINGS).close()


_CASES: dict[str, Callable[[Ground, Generator], None]] = {
    "hash": partial(_bundle, fit=False),
    "fit": partial(_bundle, fit=True),
    "waveform": audio.waveform,
    "file": audio.file,
    "state": _state,
    "model": _model,
}
