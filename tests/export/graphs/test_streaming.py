from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.quantized import quantize
from device_sdk.bundle.weights import pack
from device_sdk.runtimes.onnxruntime import open_session
from export.graphs import streaming
from export.networks.rnnt import RNNT
from tests.device_sdk.bundle.test_bundle import dequantized
from tests.tiny import EXACT_INT8, tiny_weights

SHAPES = {
    "one layer": Architecture(1, 16, 1, 12, 10, 8, 20),
    "two layers": Architecture(2, 16, 2, 12, 10, 8, 20),
    "too many pieces for a table": Architecture(1, 8, 2, 6, 5, 4, streaming.TABLE_PIECES + 1),
}
JOINED = [((1, 1), (4, 1)), ((4, 1), (4, 1)), ((1, 3), (4, 1)), ((2, 3), (2, 3))]


@pytest.fixture(params=SHAPES, scope="module")
def network(request):
    torch.manual_seed(0)
    network = RNNT(SHAPES[request.param]).eval()
    torch.nn.init.normal_(network.mean)
    torch.nn.init.uniform_(network.scale, 0.5, 1.5)
    return network


def run(network, build, inputs):
    sizes = network.architecture
    return open_session(build(sizes), build.__name__, pack(sizes, network.to_parameters()), sizes).run(None, inputs)


@torch.no_grad()
def test_the_encoder_in_chunks_is_the_networks(network):
    sizes = network.architecture
    features = np.random.default_rng(0).normal(size=(1, 30, sizes.mel_bins)).astype(np.float32)
    h = c = np.zeros((sizes.encoder_layers, 1, sizes.encoder_size), np.float32)
    parts = []
    for begin, end in ((0, 3), (3, 18), (18, 30)):
        encoded, h, c = run(network, streaming.encoder, {"features": features[:, begin:end], "h": h, "c": c})
        parts.append(encoded)
    expected = network.encode(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, atol=1e-5)


@torch.no_grad()
def test_prediction_steps_are_the_networks(network):
    sizes = network.architecture
    tokens = np.random.default_rng(1).integers(1, sizes.pieces, (3, 5))
    h = c = np.zeros((sizes.predictor_layers, 3, sizes.predictor_size), np.float32)
    steps = []
    for column in [np.zeros(3, np.int64), *tokens.T]:
        predicted, h, c = run(network, streaming.predictor, {"tokens": column, "h": h, "c": c})
        steps.append(predicted)
    np.testing.assert_allclose(np.stack(steps, axis=1), network.predict(torch.from_numpy(tokens)).numpy(), atol=1e-5)


Float = NDArray[np.float64]


class Case:
    """Seeded weights of an architecture, as the graphs get them and as numpy reads them back."""

    def __init__(self, sizes: Architecture) -> None:
        self.sizes, self.weights = sizes, tiny_weights(sizes)
        self.packed, self.content = pack(sizes, self.weights), quantize(sizes, self.weights)

    def session(self, build: Any, int8: bool = True) -> Any:
        graph = build(self.sizes, int8=int8)
        return open_session(graph, build.__name__, self.packed, self.sizes, quantized=self.content)

    def matrix(self, name: str) -> Float:
        return dequantized(self.sizes, self.content, name)


@pytest.fixture(params=SHAPES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(SHAPES[request.param])


def unit(x: Float) -> Float:
    """On the grid that states and joint are rounded to."""
    return np.rint(127 * x) / 127


def cell(gates: Float, c: Float) -> tuple[Float, Float]:
    i, o, f, candidate = np.split(gates, 4, axis=-1)
    i, o, f = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, o, f))
    c = f * c + i * np.tanh(candidate)
    return o * np.tanh(c), c


@EXACT_INT8
def test_the_encoder_is_within_its_rounding_of_the_float_one(case: Case) -> None:
    sizes = case.sizes
    features = np.random.default_rng(0).normal(-6.0, 3.0, (1, 30, sizes.mel_bins)).astype(np.float32)
    zeros = np.zeros((sizes.encoder_layers, 1, sizes.encoder_size), np.float32)
    inputs = {"features": features, "h": zeros, "c": zeros}
    found, h, c = case.session(streaming.encoder).run(None, inputs)
    expected = case.session(streaming.encoder, int8=False).run(None, inputs)
    assert found.shape == (1, 10, sizes.joiner_size) and h.shape == c.shape == zeros.shape
    for mine, exact in zip((found, h, c), expected, strict=True):
        assert np.abs(mine - exact).max() < 0.05 * np.abs(exact).max()
    assert np.abs(found - expected[0]).max() > 0.0


@EXACT_INT8
def test_prediction_is_numpys_whatever_else_is_in_the_batch(case: Case) -> None:
    sizes, weights = case.sizes, case.weights
    session, rng = case.session(streaming.predictor), np.random.default_rng(1)
    layers, size = sizes.predictor_layers, sizes.predictor_size
    tokens = rng.integers(1, sizes.pieces, 5)
    h, c = (rng.uniform(-1, 1, (layers, 5, size)).astype(np.float32) for _ in "hc")
    found = session.run(None, {"tokens": tokens, "h": h, "c": c})
    below: Float = np.zeros(0)
    for layer in range(layers):
        if layer > 0:
            inputs = unit(below) @ case.matrix(f"predictor.{layer}.W").T
        elif sizes.pieces <= streaming.TABLE_PIECES:
            inputs = weights["predictor.embedding"][tokens] @ weights["predictor.0.W"].T.astype(np.float64)
        else:
            inputs = case.matrix("predictor.embedding")[tokens] @ case.matrix("predictor.0.W").T
        gates = inputs + weights[f"predictor.{layer}.B"] + unit(h[layer]) @ case.matrix(f"predictor.{layer}.R").T
        below, cells = cell(gates, c[layer])
        # A state on the edge of a grid cell may step over.
        np.testing.assert_allclose(found[1][layer], below, atol=2e-2)
        np.testing.assert_allclose(found[2][layer], cells, atol=2e-2)
    np.testing.assert_allclose(found[0], unit(found[1][-1]) @ case.matrix("joiner.predictor.weight").T, atol=1e-4)
    for row in range(5):
        alone = session.run(None, {"tokens": tokens[row : row + 1], "h": h[:, row : row + 1], "c": c[:, row : row + 1]})
        np.testing.assert_allclose(alone[0][0], found[0][row], atol=1e-5)


@EXACT_INT8
@pytest.mark.parametrize("shapes", JOINED)
def test_the_joiner_is_numpys(case: Case, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    rng = np.random.default_rng(2)
    encoded, predicted = (rng.normal(size=(*shape, case.sizes.joiner_size)) for shape in shapes)
    inputs = {"encoded": encoded.astype(np.float32), "predicted": predicted.astype(np.float32)}
    (found,) = case.session(streaming.joiner).run(None, inputs)
    logits = unit(np.tanh(encoded + predicted)).reshape(len(found), -1) @ case.matrix("joiner.output.weight").T
    logits += case.weights["joiner.output.bias"]
    np.testing.assert_allclose(found, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), atol=1e-4)
