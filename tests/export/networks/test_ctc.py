"""The CTC head: its graph beside torch, and what padding changes: nothing."""

import numpy as np
import onnxruntime
import pytest
import torch

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from device_sdk.runtimes.ctc import Pronunciation
from export.graphs.ctc import ctc_graph
from export.networks.ctc import CtcHead

SPELLED = Pronunciation(("a", "b", "k", "s"), {("a", "", ""): (1,)})
PHONES = 1 + len(SPELLED.symbols)


@pytest.fixture(scope="module")
def head(tiny_bundle: Bundle) -> CtcHead:
    torch.manual_seed(0)
    return CtcHead(tiny_bundle.lstm.joiner_size, PHONES, cells=7).eval()


def test_the_graph_says_what_torch_says(head: CtcHead, tiny_bundle: Bundle) -> None:
    graph = ctc_graph(head.to_parameters(), tiny_bundle.lstm, SPELLED)
    session = onnxruntime.InferenceSession(graph)
    for frames in (1, 2, 30):
        encoded = np.random.default_rng(frames).normal(size=(frames, tiny_bundle.lstm.joiner_size)).astype(np.float32)
        found = session.run(None, {"encoded": encoded})[0]
        with torch.no_grad():
            expected = head(torch.from_numpy(encoded)[None], torch.tensor([frames]))[0].numpy()
        assert found.shape == (frames, PHONES)
        np.testing.assert_allclose(found, expected, atol=0.02)  # matrices are int8 there
        np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-5)


def test_padding_is_not_heard(head: CtcHead) -> None:
    encoded = torch.randn(3, 20, head.plain.in_features)
    frames = torch.tensor([20, 13, 1])
    with torch.no_grad():
        together = head(encoded, frames)
        for row, count in enumerate(frames.tolist()):
            alone = head(encoded[row : row + 1, :count], torch.tensor([count]))
            torch.testing.assert_close(together[row, :count], alone[0], atol=1e-5, rtol=0)


def test_what_comes_after_is_heard_too(head: CtcHead) -> None:
    encoded, frames = torch.randn(1, 9, head.plain.in_features), torch.tensor([9])
    later = encoded.clone()
    later[:, 8] += 1.0
    with torch.no_grad():
        assert (head(encoded, frames)[0, 0] - head(later, frames)[0, 0]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("forward.R", None, "forward.R: is missing"),
        ("output.bias", np.zeros(3, np.float32), r"output.bias: found \(3,\), expected \(5,\)"),
        ("backward.W", None, "backward.W: found None"),
        ("output.weight", np.full((5, 14), np.nan, np.float32), "finite"),
    ],
)
def test_weights_that_are_none(name: str, value: np.ndarray | None, message: str, head: CtcHead, tiny_bundle) -> None:
    parameters = head.to_parameters()
    parameters.pop(name)
    given = parameters if value is None else parameters | {name: value}
    with pytest.raises(BundleError, match=message):
        ctc_graph(given, tiny_bundle.lstm, SPELLED)
