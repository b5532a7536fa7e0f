"""What steps made of a base comes back bit for bit; wrong stored values are named, also where they decrypt."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load

from device_sdk import Bundle, BundleError, Device, StateError
from device_sdk.checkin import reports
from device_sdk.state import Store, records
from tests.device_sdk.damage.cases import manifest_of
from tests.device_sdk.devices import KEY, quick, tell

NAMES = ("encoder.0.W", "joiner.output.bias", "predictor.embedding")
BASE = {name: np.zeros((2, 3), np.float32) for name in NAMES}
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.fixed_dictionaries({name: arrays.arrays(np.float32, (2, 3), elements=floats) for name in NAMES})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with closing(Store(tmp_path_factory.mktemp("records"), KEY)) as opened:
        yield opened


@given(base=weights, own=weights, teacher=weights, moved=st.sets(st.sampled_from(NAMES)), started=st.booleans())
def test_local_weights_come_back_bit_for_bit(store: Store, base, own, teacher, moved, started) -> None:
    student = {name: own[name] if name in moved else base[name] for name in NAMES}
    start = teacher if started else None
    records.drop_local(store)
    if start is not None:
        records.write_start(store, start, base)
    records.write_local(store, records.Local("base-1", student, teacher, 3, 2, start), base)
    found = records.read_local(store, base)
    assert (found.base, found.steps, found.utterances, found.start is None) == ("base-1", 3, 2, start is None)
    for one, other in ((found.weights, student), (found.teacher, teacher), (found.start or {}, start or {})):
        assert set(one) == set(other) and all(one[name].tobytes() == other[name].tobytes() for name in other)


def test_weights_under_the_servers_teacher_are_stored_once(store: Store) -> None:
    student = {name: np.full((2, 3), 7.0, np.float32) for name in NAMES}
    records.drop_local(store)
    for teacher in (student, None):  # the device's own, then the server's
        records.write_local(store, records.Local("base-1", student, teacher, 1, 1), BASE)
    found = records.read_local(store, BASE)
    assert store.names("weights") == ["local"] and found is not None and found.teacher is None
    assert all(np.array_equal(found.weights[name], student[name]) for name in NAMES)


def test_only_what_differs_in_a_bit_is_stored(store: Store) -> None:
    student = {**BASE, "joiner.output.bias": np.full((2, 3), -0.0, np.float32)}
    copied = {name: array.copy() for name, array in BASE.items()}
    records.drop_local(store)
    records.write_local(store, records.Local("base-1", student, copied, 1, 1), BASE)
    stored = [set(load(store.get("weights", name) or b"")) for name in ("local", "teacher")]
    assert stored == [{"joiner.output.bias"}, set()]
    found = records.read_local(store, BASE)
    assert found is not None and np.signbit(found.weights["joiner.output.bias"]).all()


def marginals(values: object, place: str = "", content: bytes = b"") -> Callable[[Store], None]:
    """Damage: no distribution, or one of whose records another stands in the place."""

    def damage(store: Store) -> None:
        records.write_marginals(store, 1, "digest", np.asarray(values, np.float64))
        if place:
            store.put(*place.split("/"), content)

    return damage


def stored_marginals(store: Store) -> object:
    return records.read_marginals(store, "digest", 1)


def setting(name: str, content: bytes) -> Callable[[Store], None]:
    return lambda store: store.put("settings", name, content)


@pytest.mark.parametrize(
    ("damage", "read", "message"),
    [
        (marginals([0.5, 0.4]), stored_marginals, "2 values that are no distribution"),
        (marginals([1.5, -0.5]), stored_marginals, "no distribution"),
        (marginals([np.nan, 1.0]), stored_marginals, "no distribution"),
        (marginals([]), stored_marginals, "0 values"),
        (marginals([0.5, 0.5]), stored_marginals, "found 2 probabilities, expected one for each word, 1"),
        (marginals([1.0], "marginals/global", b"odd"), stored_marginals, "marginals/global: "),
        (marginals([1.0], "settings/marginals", b"[]"), stored_marginals, "marginals/global: "),
        (setting("x", b"\xff"), lambda store: records.read_text(store, "x"), "settings/x"),
        (setting("x", b"one"), lambda store: records.read_number(store, "x"), "settings/x"),
        (setting("x", b"nan"), lambda store: records.read_number(store, "x"), "found nan"),
        (setting("x", b"-1"), lambda store: records.read_number(store, "x"), "found -1"),
        (setting("reported", b"{"), reports._read_rounds, "settings/reported"),
        (setting("reported", b"[1]"), reports._read_rounds, "settings/reported"),
    ],
)
def test_damaged_values_are_named(store: Store, damage, read, message) -> None:
    damage(store)
    with pytest.raises(StateError, match=message):
        read(store)


def learned(folder: Path, bundle: Bundle) -> int:
    with Device.open(folder, KEY, bundle, quick()) as device:
        tell(device)
        device.learn()
        return device.student.steps


def test_local_weights_of_another_shape_are_named(tmp_path: Path, tiny_bundle: Bundle) -> None:
    assert learned(tmp_path, tiny_bundle)
    base = {name: tiny_bundle.weights[name] for name in tiny_bundle.architecture.parameter_shapes()}
    with closing(Store(tmp_path, KEY)) as store:
        local = records.read_local(store, base)
        teacher = {**local.weights, "joiner.output.bias": np.zeros(3, np.float32)}
        records.write_local(store, records.Local(local.base, local.weights, teacher, local.steps, 1), base)
    with pytest.raises(StateError, match=r"weights/teacher: .*'joiner.output.bias' has shape \[3\]"):
        Device.open(tmp_path, KEY, tiny_bundle)


@pytest.mark.parametrize("name", ["encoder.onnx", "language_model.onnx"])
def test_a_new_bundle_that_cannot_recognize_costs_nothing_that_was_learned(tmp_path, tiny_bundle, name) -> None:
    steps = learned(tmp_path / "state", tiny_bundle)
    folder = shutil.copytree(tiny_bundle.path, tmp_path / "next")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files[name] = files[name][:-40]
    (folder / name).write_bytes(files[name])
    (folder / "manifest.json").write_bytes(manifest_of(files, "next"))
    assert json.loads((folder / "manifest.json").read_text())["version"] == "next"
    with pytest.raises(BundleError, match=name):
        Device.open(tmp_path / "state", KEY, Bundle.open(folder))
    with Device.open(tmp_path / "state", KEY, tiny_bundle) as device:
        assert device.student.steps == steps > 0
