"""Sums of gradients: their algebra, and how they lie on the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundle import Bundle
from device_sdk.device import Device
from device_sdk.errors import LearningError, StateError
from device_sdk.learning.delta import GradientSum, add, empty, mean
from device_sdk.state import Store, records

KEY = bytes(range(32))
SHAPES = {"w": (2, 3), "b": (4,)}
# Small integers: float32 sums of them are exact, so the algebra can be tested for equality.
values = st.lists(st.integers(-64, 64), min_size=10, max_size=10)


def gradient(flat: list[int]) -> dict[str, np.ndarray]:
    array = np.array(flat, np.float32)
    return {"w": array[:6].reshape(2, 3), "b": array[6:]}


@given(st.lists(values, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_mean_does_not_depend_on_the_order(gradients, order) -> None:
    total = empty(SHAPES)
    for each in gradients:
        total = add(total, gradient(each))
    shuffled = list(gradients)
    order.shuffle(shuffled)
    again = empty(SHAPES)
    for each in shuffled:
        again = add(again, gradient(each))
    assert total.utterances == again.utterances == len(gradients)
    for name, array in mean(total).items():
        assert np.array_equal(array, mean(again)[name])
        expected = np.mean([gradient(each)[name] for each in gradients], axis=0, dtype=np.float64)
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_a_sum_is_not_changed_by_adding_to_it() -> None:
    total = add(empty(SHAPES, limit=2), gradient([1] * 10))
    assert not total.full
    more = add(total, {"b": np.full(4, 2.0, np.float32)})  # a subset: the rest counts as zero
    assert more.full
    assert total.sum["b"].tolist() == [1] * 4
    assert mean(more)["b"].tolist() == [1.5] * 4
    assert mean(more)["w"].tolist() == [[0.5] * 3] * 2
    assert not any(array.any() for array in mean(empty(SHAPES)).values())
    assert not empty(SHAPES).full


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"v": np.zeros(1, np.float32)}, "v: not a parameter"),
        ({"b": np.full(4, np.nan, np.float32)}, "b: found values"),
    ],
)
def test_what_cannot_be_added(bad, message) -> None:
    with pytest.raises(LearningError, match=message):
        add(empty(SHAPES), bad)


def collected(store: Store, bundle: Bundle, total: GradientSum) -> None:
    records.write_gradients(store, records.Collected(bundle.version, total.sum, total.utterances, total.limit or 1))


def test_gradients_come_back_and_are_dropped_with_their_base(tmp_path: Path, tiny_bundle: Bundle) -> None:
    shapes = tiny_bundle.architecture.parameter_shapes()
    rng = np.random.default_rng(0)
    total = empty(shapes, 5)
    for _ in range(2):
        total = add(total, {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        collected(device._model_state.store, tiny_bundle, total)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        found = device.student.gradients
        assert found is not None and (found.utterances, found.limit) == (2, 5)
        assert all(np.array_equal(found.sum[name], total.sum[name]) for name in shapes)
        records.write_gradients(device._model_state.store, records.Collected("another", total.sum, 2, 5))
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        found = device.student.gradients
        assert found is not None and (found.utterances, found.limit) == (0, 5)
        device.forget()
        assert device.student.gradients is None


def test_gradients_are_dropped_where_the_user_no_longer_shares_them(tmp_path: Path, tiny_bundle: Bundle) -> None:
    shapes = tiny_bundle.architecture.parameter_shapes()
    ones = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        device.agree("deltas")
        model_state = device._model_state
        model_state.collect(3)
        assert device.student.gradients is not None
        model_state.commit(replace(device.student, gradients=add(device.student.gradients, ones)))
        assert records.read_gradients(model_state.store) is not None
        device.withdraw("deltas")
        assert device.student.gradients is None
        assert records.read_gradients(model_state.store) is None
        assert "gradients" not in model_state.store.names("weights")


def odd(**changes: np.ndarray) -> Callable[[Store, Bundle], None]:
    def damage(store: Store, bundle: Bundle) -> None:
        arrays = {name: np.zeros(shape, np.float32) for name, shape in bundle.architecture.parameter_shapes().items()}
        collected(store, bundle, GradientSum(arrays | changes, 1, 2))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (odd(**{"joiner.output.bias": np.zeros(3, np.float32)}), "joiner.output.bias: found float32"),
        (odd(**{"joiner.output.bias": np.full(64, np.inf, np.float32)}), "joiner.output.bias: found float32"),
        (odd(**{"joiner.output.bias": np.zeros(64)}), "joiner.output.bias: found float64"),
        (lambda store, bundle: store.put("settings", "gradients", b"{"), "weights/gradients: the value cannot be read"),
        (
            lambda store, bundle: store.put(
                "settings", "gradients", b'{"base": "tiny-0", "utterances": 3, "limit": 4}'
            ),
            "found 3 utterances of 4",
        ),
        (
            lambda store, bundle: store.put(
                "settings", "gradients", b'{"base": "tiny-0", "utterances": 0, "limit": 0}'
            ),
            "found 0 utterances of 0",
        ),
    ],
)
def test_damaged_gradients_are_named(tmp_path: Path, tiny_bundle: Bundle, damage, message) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        damage(device._model_state.store, tiny_bundle)
    with pytest.raises(StateError, match=message):
        Device.open(tmp_path, KEY, tiny_bundle)
