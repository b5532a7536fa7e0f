"""The streaming graphs on onnxruntime against the network in torch."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle import PRESETS, Bundle
from device_sdk.errors import BundleError, ConfigurationError
from device_sdk.runtimes import onnxruntime as runtime
from device_sdk.runtimes.onnxruntime import OnnxTransducer, open_session
from export.graphs import joiner
from tests.tiny import EXACT_INT8

Float = NDArray[np.float32]


@pytest.fixture(scope="module")
def features() -> Float:
    return np.random.default_rng(3).normal(-6.0, 3.0, (60, 64)).astype(np.float32)


@pytest.mark.parametrize("shape", [(4, 64), (6, 63), (6,)])
def test_features_of_a_wrong_shape_are_refused(tiny_bundle: Bundle, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"features: found shape .* expected \[F, 64\]"):
        OnnxTransducer(tiny_bundle).encode(np.zeros(shape, np.float32))


JOINED = [((1,), (3,)), ((3,), (3,)), ((3,), (1,)), ((1, 4), (3, 1)), ((3, 4), (3, 4)), ((1, 1), (1, 1))]


@pytest.mark.parametrize("shapes", JOINED)
def test_joiner_gives_log_probabilities(tiny_bundle: Bundle, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    weights, rng = tiny_bundle.weights, np.random.default_rng(0)
    encoded, predicted = (rng.normal(size=(*shape, 32)).astype(np.float32) for shape in shapes)
    found = OnnxTransducer(tiny_bundle).join(encoded, predicted)
    logits = np.tanh(encoded.astype(np.float64) + predicted) @ weights["joiner.output.weight"].T
    logits += weights["joiner.output.bias"]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=3e-5)


def test_without_native_sessions_the_runtime_is_asked(tiny_bundle: Bundle, features: Float, monkeypatch) -> None:
    class Session:
        """What another version of onnxruntime may give: no native session inside."""

        def __init__(self, session) -> None:
            self.run, self.get_inputs, self.get_outputs = session.run, session.get_inputs, session.get_outputs

    native = OnnxTransducer(tiny_bundle)
    expected, _ = native.encode(features)
    monkeypatch.setattr(runtime, "open_session", lambda *given: Session(open_session(*given)))
    transducer = OnnxTransducer(tiny_bundle)
    np.testing.assert_array_equal(transducer.encode(features)[0], expected)
    for each, token in itertools.product((transducer, native), (-10_000, 10_000)):
        with pytest.raises(BundleError, match=r"predictor: onnxruntime cannot run this graph .*; export the bundle"):
            each.predict(np.full(1, token, np.int64))


def test_int8_is_close_and_follows_the_weights(tiny_bundle: Bundle, features: Float) -> None:
    learned = {name: value + np.float32(0.02) for name, value in tiny_bundle.weights.items() if "features" not in name}
    other = tiny_bundle.with_weights(learned, "learned")
    exact = [OnnxTransducer(bundle).encode(features)[0] for bundle in (tiny_bundle, other)]
    found = [OnnxTransducer(bundle, precision="int8").encode(features)[0] for bundle in (tiny_bundle, other)]
    for mine, expected in zip(found, exact, strict=True):
        assert 0.0 < np.abs(mine - expected).max() < 0.05 * np.abs(expected).max()
    change = exact[1] - exact[0]
    assert np.linalg.norm(found[1] - found[0] - change) < 0.2 * np.linalg.norm(change)


@EXACT_INT8
def test_a_processor_that_clamps_gets_coarser_weights(tiny_bundle: Bundle, features: Float, monkeypatch) -> None:
    expected, _ = OnnxTransducer(tiny_bundle).encode(features)
    monkeypatch.setattr(runtime, "_exact", None)
    monkeypatch.setattr(runtime, "_tried_exact", lambda bundle: False)
    monkeypatch.setattr(runtime.platform, "machine", lambda: "x86_64")
    coarse, _ = OnnxTransducer(tiny_bundle, precision="int8").encode(features)
    monkeypatch.setattr(runtime, "_exact", None)
    monkeypatch.setattr(runtime.platform, "machine", lambda: "arm64")
    fine, _ = OnnxTransducer(tiny_bundle, precision="int8").encode(features)
    assert np.linalg.norm(fine - expected) < np.linalg.norm(coarse - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize(("exact", "graphs", "expected"), [(1, 1, "int8"), (0, 1, "float32"), (1, 0, "float32")])
def test_auto_takes_int8_where_it_can(exact, graphs, expected, tiny_bundle, monkeypatch):
    monkeypatch.setattr(runtime, "_exact", bool(exact))
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: bool(graphs) or "int8" not in name)
    assert OnnxTransducer(tiny_bundle, precision="auto").precision == expected


def test_clamped_products_are_noticed(tiny_bundle: Bundle, monkeypatch) -> None:
    class Clamping:
        """What a processor whose pairs stop at 32,767 instead of 64,770 makes of the trial."""

        def run(self, outputs: None, rows: dict[str, Float]) -> list[Float]:
            return [np.resize(np.array([-4.200, -4.137], np.float32), (1, tiny_bundle.architecture.pieces))]

    monkeypatch.setattr(runtime, "open_session", lambda *_, **__: Clamping())
    assert not runtime._tried_exact(tiny_bundle)


def test_a_precision_that_is_not_there_is_named(tiny_bundle: Bundle, monkeypatch) -> None:
    with pytest.raises(ConfigurationError, match="precision: found 'int4', expected one of 'float32', 'int8', 'auto'"):
        OnnxTransducer(tiny_bundle, precision="int4")  # type: ignore[arg-type]
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: "int8" not in name)
    with pytest.raises(BundleError, match=r"holds no graphs of precision int8.*idiolect export refresh"):
        OnnxTransducer(tiny_bundle, precision="int8")


def test_graphs_of_another_architecture_and_damaged_graphs_are_refused(tiny_bundle: Bundle) -> None:
    small = PRESETS["small"]
    with pytest.raises(BundleError, match=r"joiner\.onnx: metadata idiolect\.architecture is '\w+', expected '\w+'"):
        open_session(joiner(small), "joiner.onnx", bytes(1 << 24), tiny_bundle.architecture)
    with pytest.raises(BundleError, match=r"joiner\.onnx: onnxruntime cannot load"):
        open_session(b"not a graph", "joiner.onnx")
    with pytest.raises(BundleError, match=r"joiner\.onnx: onnxruntime cannot load"):
        open_session(joiner(small), "joiner.onnx", bytes(16), small)
