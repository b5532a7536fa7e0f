"""What a device sends of its learning: which arrays, how clipped, noised and written; and sums of gradients."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from device_sdk import Bundle, Device, LearningError, PrivacyError, ProtocolError, StateError
from device_sdk.learning.delta import add, add_noise, bound, difference, empty, mean, secret_gaussian
from device_sdk.privacy.clipping import clip, layer_bounds
from device_sdk.state import records
from device_sdk.wire.delta_codec import LEVELS, SCALE, decode, encode, group_sizes
from device_sdk.wire.messages import DeltaPlan
from tests.device_sdk.devices import KEY

CLIPPINGS = ("global", "uniform", "dim")
NARROW = [("float16", "tensor"), ("int8", "tensor"), ("int8", "row")]


def arrays(*values: list[float]) -> dict[str, np.ndarray]:
    return {f"p{index}": np.array(value, np.float32) for index, value in enumerate(values)}


def norm(found: dict[str, np.ndarray]) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in found.values()))


vectors = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=6)
layers = st.lists(vectors, min_size=1, max_size=5)


@given(layers, st.floats(0.01, 20), st.sampled_from(CLIPPINGS))
def test_clipping_bounds_the_whole_and_only_scales_down(values, bound, clipping) -> None:
    before = arrays(*values)
    after, length = clip(before, bound, clipping)
    assert length == pytest.approx(norm(before), rel=1e-9) and norm(after) <= bound * (1 + 1e-6)
    limits = layer_bounds({name: array.shape for name, array in before.items()}, bound, clipping)
    if clipping != "global":
        assert math.sqrt(sum(limit**2 for limit in limits.values())) == pytest.approx(bound)
    for name, array in before.items():
        own, limit = (norm(before), bound) if clipping == "global" else (norm({name: array}), limits[name])
        np.testing.assert_allclose(after[name], array * min(1.0, limit / own if own else 1.0), rtol=1e-6)
    again, _ = clip(after, bound * (1 + 1e-6), clipping)
    for name in before:
        np.testing.assert_allclose(again[name], after[name], rtol=3e-6, atol=1e-30)


def test_bounds_of_layers_are_those_of_the_definition() -> None:
    shapes = {"a": (3, 4), "b": (4,)}
    assert layer_bounds(shapes, 2.0, "uniform") == pytest.approx({"a": 2**0.5, "b": 2**0.5})
    assert layer_bounds(shapes, 2.0, "dim") == pytest.approx({"a": 2 * 0.75**0.5, "b": 1.0})
    assert layer_bounds(shapes, 2.0, "global") == {"a": 2.0, "b": 2.0}


def test_delta_is_local_minus_base_bounded() -> None:
    base, local = arrays([1.0, 1.0], [0.0]), arrays([4.0, 1.0], [4.0])
    delta, norm = bound(difference(local, base), DeltaPlan(clip_norm=1.0))
    np.testing.assert_allclose([*delta["p0"], *delta["p1"], norm], [0.6, 0.0, 0.8, 5.0], rtol=1e-6)


UNBOUNDED = DeltaPlan.model_construct(clip_norm=0.0, clipping="global")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: difference(arrays([1.0]), arrays([1.0], [2.0])), LearningError, "names differ"),
        (lambda: difference(arrays([1.0]), arrays([1.0, 2.0])), LearningError, r"p0: found shape \(1,\)"),
        (lambda: difference(arrays([math.nan]), arrays([1.0])), LearningError, "not finite"),
        (lambda: add_noise(arrays([1.0]), -1.0), PrivacyError, "noise_stddev"),
        (lambda: add_noise(arrays([1.0]), math.nan), PrivacyError, "noise_stddev"),
        (lambda: bound(arrays([1.0]), UNBOUNDED), PrivacyError, "clip_norm"),
        (lambda: add(empty(SHAPES), {"v": np.zeros(1, np.float32)}), LearningError, "v: not a parameter"),
        (lambda: add(empty(SHAPES), {"b": np.full(4, np.nan, np.float32)}), LearningError, "b: found values"),
    ],
)
def test_impossible_deltas(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()


def test_the_noise_is_normal_and_never_repeats() -> None:
    values = secret_gaussian(200_001)
    assert values.shape == (200_001,) and abs(values.mean()) < 0.015 and abs(values.std() - 1.0) < 0.01
    for quantile, expected in ((0.0228, -2.0), (0.1587, -1.0), (0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        assert abs(np.quantile(values, quantile) - expected) < 0.05
    assert abs(np.mean(values[:100_000] * values[100_000:200_000])) < 0.02


def test_noise_is_on_a_grid_whatever_the_value() -> None:
    """Which results are reachable must not depend on the value that was noised."""
    grid = 2.0 ** math.floor(math.log2(0.1 / 1024))
    for value in (0.0, 1 / 3, 1e-7):
        given = {"p": np.full(1000, value, np.float32)}
        result = add_noise(given, 0.1)["p"].astype(np.float64)
        np.testing.assert_array_equal(result, np.round(result / grid) * grid)
        assert abs(result.std() - 0.1) < 0.02 and add_noise(given, 0.0)["p"] is given["p"]


def steps(array: np.ndarray, scales: np.ndarray, encoding: str) -> np.ndarray:
    """Distance of the two levels around every value, float64."""
    if encoding == "int8":
        return np.broadcast_to(scales.astype(np.float64).reshape(-1, *[1] * (array.ndim - 1)), array.shape)
    _, exponents = np.frexp(array.astype(np.float64))
    # Ten bits follow the first, down to the smallest step of float16.
    return np.maximum(np.ldexp(1.0, exponents - 11), 2.0**-24 * float(scales[0]))


@pytest.mark.parametrize(("encoding", "scale_per"), NARROW)
@given(layers, st.integers(-20, 20))
@hypothesis_settings(max_examples=60)
def test_rounding_goes_to_a_neighbouring_level(encoding, scale_per, values, power) -> None:
    before = {name: np.ldexp(array, power) for name, array in arrays(*values).items()}
    tensors = encode(before, encoding, scale_per)
    after = decode(tensors, encoding, scale_per)
    for name, array in before.items():
        assert after[name].dtype == np.float32 and after[name].shape == array.shape
        assert encoding != "int8" or float(tensors[SCALE + name][0]) * LEVELS >= float(np.abs(array).max())
        step = steps(array, tensors[SCALE + name], encoding)
        assert np.all(np.abs(after[name].astype(np.float64) - array) <= step * (1 + 1e-6))
        assert np.all((array != 0) | (after[name] == 0)), "zero is a level"


@pytest.mark.parametrize(("encoding", "scale_per"), NARROW)
def test_rounding_is_unbiased(encoding, scale_per) -> None:
    """The mean of many draws is as near every value as Bernstein's inequality has it for unbiased choices."""
    rng = np.random.default_rng(0)
    wide, narrow = rng.normal(size=(4, 30)), 1e-3 * rng.normal(size=(4, 30))
    values = {"w": np.concatenate((wide, narrow, np.ones((4, 1))), axis=1).astype(np.float32)}
    draws = 4000
    written = [encode(values, encoding, scale_per) for _ in range(draws)]
    mean = np.mean([decode(tensors, encoding, scale_per)["w"] for tensors in written], axis=0, dtype=np.float64)
    step = steps(values["w"], written[0][SCALE + "w"], encoding)
    share = np.mod(values["w"] / step, 1.0)
    chance = math.log(2 / 1e-12)  # of a value beyond the bound: one in 10^12
    bound = np.sqrt(2 * share * (1 - share) * chance / draws) + chance / (3 * draws)
    assert np.all(np.abs(mean - values["w"]) <= step * bound + 1e-9)
    if (encoding, scale_per) == ("int8", "tensor"):
        assert np.all(np.round(narrow / step[0, 0]) == 0), "to the nearest, all of these would be lost"
        assert np.square(mean[:, 30:60] - narrow).mean() < 0.05 * np.square(narrow).mean()


WEIGHTS = {"w": np.random.default_rng(0).normal(size=(20, 20)).astype(np.float32)}


@pytest.mark.parametrize("draw", [lambda: secret_gaussian(4), lambda: encode(WEIGHTS, "int8")["w"]])
def test_no_seed_can_be_set_for_noise_and_rounding(draw) -> None:
    np.random.seed(0)
    first = draw()
    np.random.seed(0)
    assert not np.array_equal(first, draw())


def test_rounding_adds_little_to_the_noise() -> None:
    """Noise comes first. int8 of it by rows of a thousand: its variance grows by less than one part in a thousand."""
    noise = add_noise({"w": np.zeros((200, 1000), np.float32)}, 0.1)
    rounded = decode(encode(noise, "int8"), "int8")["w"].astype(np.float64)
    assert 0 < float(np.mean((rounded - noise["w"]) ** 2)) / 0.01 < 1e-3


def test_scales_by_row_and_by_tensor() -> None:
    values = {"w": np.array([[127.0, 1.0], [0.0, 0.0], [1.27, -1.27]], np.float32), "b": np.full(3, 2.0, np.float32)}
    rows, tensor = (encode(values, "int8", per) for per in ("row", "tensor"))
    np.testing.assert_allclose(rows[SCALE + "w"], [1.0, 0.0, 0.01], rtol=1e-6)
    np.testing.assert_allclose(tensor[SCALE + "w"], [1.0])
    assert rows[SCALE + "b"].shape == tensor[SCALE + "b"].shape == (1,) and rows["w"][1].tolist() == [0, 0]
    assert group_sizes({"w": (3, 2), "b": (3,)}, "row") == {"w": 2, "b": 3}
    assert group_sizes({"w": (3, 2), "b": (3,)}, "tensor") == {"w": 6, "b": 3}


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 3e38])
@pytest.mark.parametrize(("encoding", "scale_per"), NARROW)
def test_extreme_values(encoding, scale_per, largest) -> None:
    values = {"w": np.array([[largest, -largest], [0.0, largest / 2]], np.float32)}
    after = decode(encode(values, encoding, scale_per), encoding, scale_per)["w"]
    np.testing.assert_allclose(after, values["w"], rtol=0.01, atol=1e-44)


DAMAGED = [
    ("int8", {"w": np.zeros((2, 2), np.float32)}, "w: found float32, expected int8"),
    ("float16", {"w": np.zeros((2, 2), np.int8)}, "w: found int8, expected float16"),
    ("float32", {"w": np.zeros((2, 2), np.float16)}, "w: found float16, expected float32"),
    ("int8", {SCALE + "w": None}, "scale/w: missing"),
    ("int8", {SCALE + "w": np.ones(3, np.float32)}, r"scale/w: found float32 \[3\], expected float32 \[2\]"),
    ("int8", {SCALE + "w": np.ones(2, np.float16)}, "scale/w: found float16"),
    ("int8", {SCALE + "w": np.array([1, np.nan], np.float32)}, "scale/w: found a scale that is not a finite"),
    ("int8", {SCALE + "w": np.array([1, -1], np.float32)}, "scale/w: found a scale that is not a finite"),
    ("int8", {"w": np.full((2, 2), -128, np.int8)}, "w: found -128"),
    ("int8", {SCALE + "v": np.ones(1, np.float32)}, "scale/v: a scale without its tensor"),
    ("float16", {SCALE + "w": np.array([3.0], np.float32)}, "scale/w: found .*3.0.*, expected a power of two"),
    ("float16", {SCALE + "w": np.array([0.0], np.float32)}, "scale/w: found .*, expected a power of two"),
]


@pytest.mark.parametrize(("encoding", "changes", "message"), DAMAGED)
def test_damaged_encodings_are_refused_by_name(encoding, changes, message) -> None:
    tensors = encode({"w": np.ones((2, 2), np.float32)}, encoding) | changes
    with pytest.raises(ProtocolError, match=message):
        decode({name: tensor for name, tensor in tensors.items() if tensor is not None}, encoding)


SHAPES = {"w": (2, 3), "b": (4,)}
# Small integers: float32 sums of them are exact, so the algebra can be tested for equality.
values = st.lists(st.integers(-64, 64), min_size=10, max_size=10)


def gradient(flat: list[int]) -> dict[str, np.ndarray]:
    array = np.array(flat, np.float32)
    return {"w": array[:6].reshape(2, 3), "b": array[6:]}


@given(st.lists(values, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_mean_does_not_depend_on_the_order(gradients, order) -> None:
    total = again = empty(SHAPES)
    for each in gradients:
        total = add(total, gradient(each))
    for each in order.sample(gradients, len(gradients)):
        again = add(again, gradient(each))
    assert total.utterances == again.utterances == len(gradients)
    for name, array in mean(total).items():
        assert np.array_equal(array, mean(again)[name])
        expected = np.mean([gradient(each)[name] for each in gradients], axis=0, dtype=np.float64)
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_a_sum_is_not_changed_by_adding_to_it() -> None:
    total = add(empty(SHAPES, limit=2), gradient([1] * 10))
    more = add(total, {"b": np.full(4, 2.0, np.float32)})  # a subset: the rest counts as zero
    assert (empty(SHAPES).full, total.full, more.full) == (False, False, True)
    assert mean(more)["b"].tolist() == [1.5] * 4 and mean(more)["w"].tolist() == [[0.5] * 3] * 2
    assert total.sum["b"].tolist() == [1] * 4 and not any(array.any() for array in mean(empty(SHAPES)).values())


def test_gradients_come_back_and_are_dropped_with_their_base(tmp_path: Path, tiny_bundle: Bundle) -> None:
    shapes, rng = tiny_bundle.architecture.parameter_shapes(), np.random.default_rng(0)
    total = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for base, utterances in ((tiny_bundle.version, 2), ("another", 0)):
        with Device.open(tmp_path, KEY, tiny_bundle) as device:
            records.write_gradients(device._model_state.store, records.Collected(base, total, 2, 5))
        with Device.open(tmp_path, KEY, tiny_bundle) as device:
            found = device.student.gradients
            assert found is not None and (found.utterances, found.limit) == (utterances, 5)
            assert not utterances or all(np.array_equal(found.sum[name], total[name]) for name in shapes)
            device.forget()
            assert device.student.gradients is None


def test_gradients_are_dropped_where_the_user_no_longer_shares_them(tmp_path: Path, tiny_bundle: Bundle) -> None:
    ones = {name: np.ones(shape, np.float32) for name, shape in tiny_bundle.architecture.parameter_shapes().items()}
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        device.agree("deltas")
        model_state = device._model_state
        model_state.collect(3)
        assert device.student.gradients is not None
        model_state.commit(replace(device.student, gradients=add(device.student.gradients, ones)))
        assert records.read_gradients(model_state.store) is not None
        device.withdraw("deltas")
        assert device.student.gradients is records.read_gradients(model_state.store) is None
        assert "gradients" not in model_state.store.names("weights")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (np.zeros(3, np.float32), "joiner.output.bias: found float32"),
        (np.full(64, np.inf, np.float32), "joiner.output.bias: found float32"),
        (np.zeros(64), "joiner.output.bias: found float64"),
        (b"{", "weights/gradients: the value cannot be read"),
        (b'{"base": "tiny-0", "utterances": 3, "limit": 4}', "found 3 utterances of 4"),
        (b'{"base": "tiny-0", "utterances": 0, "limit": 0}', "found 0 utterances of 0"),
    ],
)
def test_damaged_gradients_are_named(tmp_path: Path, tiny_bundle: Bundle, damage, message: str) -> None:
    shapes = tiny_bundle.architecture.parameter_shapes()
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        if isinstance(damage, bytes):
            device._store.put("settings", "gradients", damage)
        else:
            arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            total = arrays | {"joiner.output.bias": damage}
            records.write_gradients(device._store, records.Collected(tiny_bundle.version, total, 1, 2))
    with pytest.raises(StateError, match=message):
        Device.open(tmp_path, KEY, tiny_bundle)
