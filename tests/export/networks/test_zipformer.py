import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from device_sdk.errors import ConfigurationError
from device_sdk.features.logmel import SILENCE
from export.networks.zipformer import LOOK_AHEAD, PRESETS, Stack, Zipformer, ZipformerShape, state_names
from export.zipformer import export_zipformer
from tests.export.imports.folders import PIECES, drawn_network

DEEP = ZipformerShape(
    (Stack(16, 2, 1, 24, 5), Stack(24, 1, 4, 32, 9), Stack(20, 1, 2, 24, 31)), front=(3, 5, 7), left=64
)


def shaped(shape, seed=0):
    """A network whose biases, gains and shares are drawn, too."""
    torch.manual_seed(seed)
    network = Zipformer(shape).eval().double()
    with torch.no_grad():
        for value in network.parameters():
            value += 0.1 * torch.randn_like(value)
        network.mean.normal_(-8.0)
        network.scale.uniform_(0.2, 0.4)
    return network


@pytest.mark.parametrize("shape", [PRESETS["zipformer-tiny"], DEEP], ids=["tiny", "deep"])
@pytest.mark.parametrize("frames", [7, 64, 200])
@torch.no_grad()
def test_chunks_through_the_states_are_the_whole_utterance(shape, frames):
    network, chunk = shaped(shape), 2 * shape.chunk
    features = -8.0 + 3.0 * torch.randn(2, frames, shape.mel_bins, dtype=torch.float64)
    whole = network(features)
    padded = functional.pad(features, (0, 0, 0, -frames % chunk + LOOK_AHEAD), value=SILENCE)
    states, found = network.start(2, padded), []
    for at in range(0, padded.shape[1] - LOOK_AHEAD, chunk):
        encoded, states = network.stream(padded[:, at : at + chunk + LOOK_AHEAD], states)
        found.append(encoded)
    assert whole.shape == (2, -(-frames // chunk) * shape.chunk // 2, shape.size)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-10)


@torch.no_grad()
def test_nothing_is_heard_before_its_chunk_and_nothing_beyond_the_left_context():
    shape = DEEP
    network, chunk = shaped(shape), 2 * shape.chunk
    features = -8.0 + 3.0 * torch.randn(1, 20 * chunk, shape.mel_bins, dtype=torch.float64)
    whole, later = network(features), features.clone()
    later[:, 10 * chunk + LOOK_AHEAD :] = 0.0
    unchanged = (network(later) == whole).all(-1)[0]
    assert unchanged[: 10 * chunk // 4].all() and not unchanged[11 * chunk // 4 :].any()


@pytest.mark.parametrize(
    ("preset", "millions"), [("zipformer-small", (1, 6)), ("zipformer-medium", (1, 6)), ("zipformer-large", (18, 24))]
)
def test_presets_are_of_the_size_that_they_claim(preset, millions):
    assert millions[0] < sum(value.numel() for value in Zipformer(PRESETS[preset]).parameters()) / 1e6 < millions[1]


@torch.no_grad()
def test_the_exported_graph_is_the_network(tmp_path):
    network = drawn_network()
    shape, folder = network.architecture.encoder, export_zipformer(network, PIECES, tmp_path)
    encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
    states = network.encoder.start()
    for seed in range(4):
        torch.manual_seed(seed)
        features = -8.0 + 3.0 * torch.randn(1, 2 * shape.chunk + LOOK_AHEAD, shape.mel_bins)
        given = dict(zip(state_names(shape), (state.numpy() for state in states), strict=True))
        encoded, *following = encoder.run(None, {"x": features.numpy(), **given})
        expected, states = network.encoder.stream(features, states)
        np.testing.assert_allclose(encoded, network.joiner_encoder(expected).numpy(), atol=1e-4)
        for found, state in zip(following, states, strict=True):
            np.testing.assert_allclose(found, state.numpy(), atol=1e-4)
    tokens = torch.tensor([[-1, 0], [0, 5], [7, 9]])
    (said,) = onnxruntime.InferenceSession(folder / "decoder.onnx").run(None, {"y": tokens.numpy()})
    np.testing.assert_allclose(said, network.joiner_predictor(network.said(tokens))[:, 0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"stacks": ()}, "0 stacks"),
        ({"front": (8, 32, 129)}, "at most 128 channels"),
        ({"stacks": (Stack(16, 1, 3, 24),)}, "downsampling: found 3"),
        ({"stacks": (Stack(16, 1, 1, 24, kernel=8),)}, "odd kernel"),
        ({"left": 40}, "left 40"),
    ],
)
def test_sizes_that_do_not_fit_are_named(change, match):
    with pytest.raises(ConfigurationError, match=match):
        ZipformerShape(**{"stacks": (Stack(16, 1, 1, 24),), "left": 64, **change})
