"""What steps made of a base is stored as what differs from it, and comes back bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load

from device_sdk.state import Store, records

KEY = bytes(range(32))
NAMES = ("encoder.0.W", "joiner.output.bias", "predictor.embedding")
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.fixed_dictionaries({name: arrays.arrays(np.float32, (2, 3), elements=floats) for name in NAMES})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    opened = Store(tmp_path_factory.mktemp("records"), KEY)
    yield opened
    opened.close()


@given(base=weights, own=weights, teacher=weights, moved=st.sets(st.sampled_from(NAMES)), started=st.booleans())
def test_local_weights_come_back_bit_for_bit(store, base, own, teacher, moved, started) -> None:
    student = {name: own[name] if name in moved else base[name] for name in NAMES}
    start = teacher if started else None
    records.drop_local(store)
    if start is not None:
        records.write_start(store, start, base)
    records.write_local(store, records.Local("base-1", student, teacher, 3, 2, start), base)
    found = records.read_local(store, base)
    assert found is not None
    assert (found.base, found.steps, found.utterances, found.start is None) == ("base-1", 3, 2, start is None)
    pairs = [(found.weights, student), (found.teacher, teacher), (found.start or {}, start or {})]
    for one, other in pairs:
        assert set(one) == set(other)
        assert all(one[name].tobytes() == other[name].tobytes() for name in other)


def test_weights_under_the_servers_teacher_are_stored_once(tmp_path: Path) -> None:
    base = {name: np.zeros((2, 3), np.float32) for name in NAMES}
    student = {name: np.full((2, 3), 7.0, np.float32) for name in NAMES}
    store = Store(tmp_path, KEY)
    for teacher in (student, None):  # the device's own, then the server's
        records.write_local(store, records.Local("base-1", student, teacher, 1, 1), base)
    assert store.names("weights") == ["local"]
    found = records.read_local(store, base)
    store.close()
    assert found is not None and found.teacher is None
    assert all(np.array_equal(found.weights[name], student[name]) for name in NAMES)


def test_only_what_differs_in_a_bit_is_stored(tmp_path: Path) -> None:
    base = {name: np.zeros((2, 3), np.float32) for name in NAMES}
    student = {**base, "joiner.output.bias": np.full((2, 3), -0.0, np.float32)}
    copied = {name: array.copy() for name, array in base.items()}
    store = Store(tmp_path, KEY)
    records.write_local(store, records.Local("base-1", student, copied, 1, 1), base)
    assert set(load(store.get("weights", "local") or b"")) == {"joiner.output.bias"}
    assert set(load(store.get("weights", "teacher") or b"")) == set()
    found = records.read_local(store, base)
    assert found is not None and np.signbit(found.weights["joiner.output.bias"]).all()
    store.close()
