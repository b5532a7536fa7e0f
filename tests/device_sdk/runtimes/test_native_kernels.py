"""Native kernels beside float64 arithmetic, beside onnxruntime, and where they must not be used."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.bundle.quantized import layout, quantize
from device_sdk.compilation import SWITCH
from device_sdk.runtimes import native_kernels
from device_sdk.runtimes.native_kernels import NativeKernels
from device_sdk.runtimes.onnxruntime import OnnxTransducer, Precision
from device_sdk.runtimes.protocol import States
from tests.speech import packaged
from tests.tiny import EXACT_INT8, tiny_weights

Float = NDArray[np.float32]

SIZES = [(16, 16, 16), (32, 32, 64), (256, 320, 256), (80, 48, 112), (1024, 16, 1024), (48, 16, 17), (32, 64, 500)]
"""Of state, joint and pieces."""


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(SWITCH, raising=False)
    found = native_kernels.native_module()
    if found is None or not found.LEVEL:
        pytest.skip("this tree holds no native kernels of these sources; `make native` compiles them")
    return found


def shape(sizes: tuple[int, int, int]) -> Architecture:
    state, joint, pieces = sizes
    return Architecture(1, 32, 1, state, 24, joint, pieces)


def begun(architecture: Architecture, weights: dict[str, Float], precision: Precision) -> NativeKernels:
    made = (layout(architecture), quantize(architecture, weights)) if precision == "int8" else None
    found = NativeKernels.begin(architecture, weights, made)
    if found is None:
        pytest.skip(f"this processor has no quick products of {precision}")
    return found


def states(architecture: Architecture, count: int, seed: int = 0) -> States:
    rng, size = np.random.default_rng(seed), architecture.predictor_size
    h, c = (rng.uniform(-1.0, 1.0, (1, count, size)).astype(np.float32) for _ in "hc")
    return (h, 3 * c)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_step_of_prediction_is_that_of_an_lstm(sizes: tuple[int, int, int], count: int) -> None:
    architecture = shape(sizes)
    weights = tiny_weights(architecture)
    tokens, state = np.arange(count) * 5 % architecture.pieces, states(architecture, count)
    predicted, after = begun(architecture, weights, "float32").predict(tokens, state)
    exact = {name: value.astype(np.float64) for name, value in weights.items()}
    gates = exact["predictor.embedding"][tokens] @ exact["predictor.0.W"].T + exact["predictor.0.B"]
    i, o, f, candidate = np.split(gates + state[0][0] @ exact["predictor.0.R"].T, 4, axis=1)
    i, o, f = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, o, f))
    c = f * state[1][0] + i * np.tanh(candidate)
    h = o * np.tanh(c)
    np.testing.assert_allclose(after[1][0], c, atol=2e-5)
    np.testing.assert_allclose(after[0][0], h, atol=2e-5)
    np.testing.assert_allclose(predicted, h @ exact["joiner.predictor.weight"].T, atol=5e-5)
    assert after[0].shape == after[1].shape == state[0].shape


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("prefixes", "frames"), [(1, 1), (1, 7), (3, 1), (2, 5), (9, 12), (2, 0), (0, 3)])
def test_the_joint_gives_log_probabilities(sizes: tuple[int, int, int], prefixes: int, frames: int) -> None:
    architecture, rng = shape(sizes), np.random.default_rng(1)
    weights = tiny_weights(architecture)
    encoded, predicted = (
        rng.normal(0, 2, (n, architecture.joiner_size)).astype(np.float32) for n in (frames, prefixes)
    )
    found = begun(architecture, weights, "float32").join(encoded, predicted)
    logits = np.tanh(encoded.astype(np.float64)[None] + predicted[:, None]) @ weights["joiner.output.weight"].T
    logits += weights["joiner.output.bias"]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert found.shape == (prefixes, frames, architecture.pieces)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-4), pytest.param("int8", 0.05, marks=EXACT_INT8)])
def test_steps_give_what_the_graphs_give(precision: Precision, near: float) -> None:
    """Bytes are rounded alike, but for values between two of them, which an error in the last place may move."""
    bundle, rng = packaged(), np.random.default_rng(2)
    graphs = OnnxTransducer(bundle, precision=precision)
    graphs._kernels = None
    quick = OnnxTransducer(bundle, precision=precision)
    assert quick._kernels is not None
    tokens, state = np.arange(6) * 40, states(bundle.architecture, 6)
    given, found = graphs.predict(tokens, state), quick.predict(tokens, state)
    for one, other in ((given[0], found[0]), (given[1][0], found[1][0]), (given[1][1], found[1][1])):
        np.testing.assert_allclose(other, one, atol=near)
    encoded = rng.normal(0, 2, (1, 12, bundle.architecture.joiner_size)).astype(np.float32)
    given_scores, scores = (each.join(encoded, given[0][:, None]) for each in (graphs, quick))
    np.testing.assert_allclose(scores, given_scores, atol=near)
    assert np.median(np.abs(scores - given_scores)) < 1e-5


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_what_a_row_gives_does_not_depend_on_the_others(precision: Precision) -> None:
    """So that a stream gives the same bits however its chunks fall."""
    architecture, rng = shape((256, 320, 256)), np.random.default_rng(3)
    quick = begun(architecture, tiny_weights(architecture), precision)
    state, tokens = states(architecture, 7), np.arange(7)
    together, after = quick.predict(tokens, state)
    encoded = rng.normal(0, 1, (11, 320)).astype(np.float32)
    scores = quick.join(encoded, together)
    for row in range(7):
        own = (state[0][:, row : row + 1], state[1][:, row : row + 1])
        alone, after_alone = quick.predict(tokens[row : row + 1], own)
        np.testing.assert_array_equal(alone[0], together[row])
        np.testing.assert_array_equal(after_alone[1][:, 0], after[1][:, row])
        for first in (0, 4, 10):
            np.testing.assert_array_equal(quick.join(encoded[first:], alone)[0], scores[row, first:])


def test_arrays_may_lie_anyhow() -> None:
    architecture, rng = shape((32, 32, 64)), np.random.default_rng(4)
    quick = begun(architecture, tiny_weights(architecture), "float32")
    state, tokens = states(architecture, 6), np.arange(12)
    spread = (state[0][:, ::2], state[1][:, ::2])
    packed = (spread[0].copy(), spread[1].copy())
    np.testing.assert_array_equal(quick.predict(tokens[:6:2], spread)[0], quick.predict(tokens[:6:2].copy(), packed)[0])
    encoded = rng.normal(size=(32, 5)).astype(np.float32).T
    np.testing.assert_array_equal(quick.join(encoded, encoded[:2]), quick.join(encoded.copy(), encoded[:2].copy()))


@pytest.mark.parametrize("value", [1e6, -1e6, np.nan, np.inf])
def test_extremes_end_in_numbers_or_in_none(value: float) -> None:
    architecture = shape((32, 32, 64))
    quick = begun(architecture, tiny_weights(architecture), "float32")
    predicted, after = quick.predict(np.zeros(2, np.int64), states(architecture, 2))
    encoded = np.full((3, 32), value, np.float32)
    with np.errstate(invalid="ignore"):
        total = np.exp(quick.join(encoded, predicted)).sum(-1)
    assert np.isfinite(after[1]).all()
    if np.isnan(value):
        assert np.isnan(total).all()
    elif np.isfinite(value):
        np.testing.assert_allclose(total, 1.0, atol=1e-5)


def test_bad_arguments_are_named(native: Any) -> None:
    architecture = shape((32, 32, 64))
    quick = begun(architecture, tiny_weights(architecture), "float32")
    for token in (-1, 64):
        with pytest.raises(IndexError, match=f"token {token}: expected 0 to 63"):
            quick.predict(np.array([token]), states(architecture, 1))
    with pytest.raises(ValueError, match=r"buffer 1: 128 bytes, expected 256"):
        quick.predict(np.zeros(2, np.int64), states(architecture, 1))
    with pytest.raises(ValueError, match="multiples of 16"):
        native.Network(8, 32, 64, False, b"", (), (), ())
    with pytest.raises(ValueError, match="matrix: expected values and bias"):
        native.Network(16, 16, 16, False, bytes(4096), (), (), ())
    with pytest.raises(ValueError, match=r"buffer 0: 8 bytes, expected 4096"):
        native.Network(16, 16, 16, False, bytes(4096), (bytes(8), bytes(256)), (), ())


@pytest.mark.parametrize("sizes", [{"predictor_layers": 2}, {"predictor_size": 250}, {"pieces": 2048}], ids=str)
def test_other_networks_are_left_to_their_graphs(sizes: dict[str, int]) -> None:
    architecture = replace(PRESETS["small"], **sizes)
    assert NativeKernels.begin(architecture, tiny_weights(architecture)) is None
