from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.weights import pack
from device_sdk.runtimes.onnxruntime import open_session
from export.graphs import streaming
from export.networks.rnnt import RNNT

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
    session = open_session(build(sizes), build.__name__, pack(sizes, network.to_parameters()), sizes)
    return session.run(None, inputs)


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
    expected = network.predict(torch.from_numpy(tokens)).numpy()
    np.testing.assert_allclose(np.stack(steps, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("shapes", JOINED)
@torch.no_grad()
def test_the_joiner_is_the_networks(network, shapes):
    size = network.architecture.joiner_size
    random = np.random.default_rng(2)
    encoded, predicted = (random.normal(size=(*shape, size)).astype(np.float32) for shape in shapes)
    (found,) = run(network, streaming.joiner, {"encoded": encoded, "predicted": predicted})
    expected = network.join(torch.from_numpy(encoded), torch.from_numpy(predicted)).numpy()
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-5)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, atol=1e-5)
