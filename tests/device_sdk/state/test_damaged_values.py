"""Stored values that are not what they should be are named, also where they decrypt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, BundleError, Corrected, Device, DeviceSettings, LearningSettings, StateError
from device_sdk.checkin import reports
from device_sdk.state import Store, records
from tests.device_sdk.damage.cases import manifest_of
from tests.signals import noise

KEY = bytes(range(32))
SETTINGS = DeviceSettings(learning=LearningSettings(passes=1, wait_seconds=0.0))


def marginals(values: object) -> Callable[[Store], None]:
    return lambda store: records.write_marginals(store, 1, "digest", np.asarray(values, np.float64))


@pytest.mark.parametrize(
    ("damage", "read", "message"),
    [
        (marginals([0.5, 0.4]), records.read_marginals, "2 values that are no distribution"),
        (marginals([1.5, -0.5]), records.read_marginals, "no distribution"),
        (marginals([np.nan, 1.0]), records.read_marginals, "no distribution"),
        (marginals([]), records.read_marginals, "0 values"),
        (lambda store: marginals([1.0])(store) or store.put("marginals", "global", b"odd"), records.read_marginals,
         "marginals/global: "),
        (lambda store: marginals([1.0])(store) or store.put("settings", "marginals", b"[]"), records.read_marginals,
         "marginals/global: "),
        (lambda store: store.put("settings", "x", b"\xff"), lambda store: records.read_text(store, "x"), "settings/x"),
        (lambda store: store.put("settings", "x", b"one"), lambda store: records.read_number(store, "x"), "settings/x"),
        (lambda store: store.put("settings", "x", b"nan"), lambda store: records.read_number(store, "x"), "found nan"),
        (lambda store: store.put("settings", "x", b"-1"), lambda store: records.read_number(store, "x"), "found -1"),
        (lambda store: store.put("settings", "reported", b"{"), reports._read_rounds, "settings/reported"),
        (lambda store: store.put("settings", "reported", b"[1]"), reports._read_rounds, "settings/reported"),
    ],
)  # fmt: skip
def test_values(tmp_path: Path, damage: Callable[[Store], None], read: Callable[[Store], object], message: str) -> None:
    store = Store(tmp_path, KEY)
    damage(store)
    with pytest.raises(StateError, match=message):
        read(store)
    store.close()


def _learned(folder: Path, bundle: Bundle) -> int:
    with Device.open(folder, KEY, bundle, SETTINGS) as device:
        result = device.recognize(noise(8_000), 16_000)
        device.feedback(result.utterance_id, Corrected("turn on the light"))
        device.learn()
        return device.student.steps


def test_local_weights_of_another_shape_are_named(tmp_path: Path, tiny_bundle: Bundle) -> None:
    assert _learned(tmp_path, tiny_bundle)
    store = Store(tmp_path, KEY)
    base = {name: tiny_bundle.weights[name] for name in tiny_bundle.architecture.parameter_shapes()}
    local = records.read_local(store, base)
    assert local is not None
    weights = {**local.weights, "joiner.output.bias": np.zeros(3, np.float32)}
    damaged = records.Local(local.base, local.weights, weights, local.steps, local.utterances)
    records.write_local(store, damaged, base)
    store.close()
    with pytest.raises(StateError, match=r"weights/teacher: .*'joiner.output.bias' has shape \[3\]"):
        Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)


def test_marginals_of_another_length_are_named(tmp_path: Path, tiny_bundle: Bundle) -> None:
    store = Store(tmp_path, KEY)
    records.write_marginals(store, 1, tiny_bundle.words.digest, np.full(4, 0.25))
    store.close()
    with pytest.raises(StateError, match="found 4 probabilities, expected one for each word"):
        Device.open(tmp_path, KEY, tiny_bundle, SETTINGS)


@pytest.mark.parametrize("name", ["encoder.onnx", "language_model.onnx"])
def test_a_new_bundle_that_cannot_recognize_costs_nothing_that_was_learned(
    tmp_path: Path, tiny_bundle: Bundle, name: str
) -> None:
    steps = _learned(tmp_path / "state", tiny_bundle)
    folder = tmp_path / "next"
    shutil.copytree(tiny_bundle.path, folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files[name] = files[name][:-40]
    (folder / name).write_bytes(files[name])
    (folder / "manifest.json").write_bytes(manifest_of(files, "next"))
    assert json.loads((folder / "manifest.json").read_text())["version"] == "next"
    with pytest.raises(BundleError, match=name):
        Device.open(tmp_path / "state", KEY, Bundle.open(folder), SETTINGS)
    with Device.open(tmp_path / "state", KEY, tiny_bundle, SETTINGS) as device:
        assert device.student.steps == steps > 0
