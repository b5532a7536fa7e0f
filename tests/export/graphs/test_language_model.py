from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from device_sdk.errors import BundleError
from export.graphs.language_model import language_model_graph
from export.networks.language_model import LanguageModel
from export.networks.language_model_shape import LanguageModelShape

SHAPE = LanguageModelShape(words=30, size=16, feed_forward=24, blocks=2, heads=4, positions=12)
FREQUENT = replace(SHAPE, frequent=9)
WIDE = LanguageModelShape(words=300, size=64, feed_forward=128, blocks=2)


@pytest.fixture(scope="module", params=[SHAPE, FREQUENT], ids=["all", "frequent"])
def model(request) -> LanguageModel:
    torch.manual_seed(0)
    network = LanguageModel(request.param).eval()
    with torch.no_grad():  # biases and norms away from their neutral first values, so that a lost one shows
        for value in network.parameters():
            value.add_(torch.randn_like(value) * 0.2)
        for name, value in network.named_parameters():
            if value.dim() == 2 and name != "positions":  # as the graph holds them
                scale = value.abs().amax(dim=1, keepdim=True) / 127
                value.copy_((value / scale).round() * scale)
        if network.shape is FREQUENT:  # <unk> and words 9 to 29 share a row
            together = [0, *range(9, 30)]
            network.shares[together] = torch.randn(len(together)).log_softmax(0)
    return network


@pytest.fixture(scope="module")
def session(model: LanguageModel) -> onnxruntime.InferenceSession:
    parameters = {name: value.numpy() for name, value in model.state_dict().items()}
    graph = language_model_graph(parameters, model.shape, "digest")
    return onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])


def paths(before: list[int]) -> list[list[int]]:
    """From the root to each word of a tree. before: the word before each, -1 for none."""
    found = list[list[int]]()
    for place, parent in enumerate(before):
        found.append([*(found[parent] if parent >= 0 else []), place])
    return found


def feeds(before: list[int], words: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    seen = np.zeros((len(before), len(before)), bool)
    for place, path in enumerate(paths(before)):
        seen[place, path] = True
    depths = np.array([len(path) - 1 for path in paths(before)])
    return {"words": words, "targets": targets, "depths": depths, "seen": seen}


@pytest.mark.parametrize(
    "before",
    [[-1], [*range(-1, 11)], [-1, 0, 0, 1, 1, 2, 3, 6, 7, -1, 9, 9, 0], [-1, -1, -1]],
    ids=["one word", "a text", "a tree", "apart"],
)
def test_every_word_is_scored_as_in_its_own_text_by_torch(model, session, before) -> None:
    rng = np.random.default_rng(len(before))
    words, targets = (rng.integers(0, 31, len(before)) for _ in range(2))
    (found,) = session.run(None, feeds(before, words, targets))
    assert found.dtype == np.float32
    for place, path in enumerate(paths(before)):
        text, ends = (torch.from_numpy(values[path])[None] for values in (words, targets))
        with torch.no_grad():
            expected = model(text, ends)[0, -1].item()
        np.testing.assert_allclose(found[place], expected, atol=1e-5)


def test_probabilities_sum_to_one_and_the_future_is_not_seen(session: onnxruntime.InferenceSession) -> None:
    rows, targets = np.repeat(np.array([[30, 3, 5, 7]]), 31, axis=0), np.repeat(np.arange(31)[:, None], 4, axis=1)
    apart = [place - 1 if place % 4 else -1 for place in range(rows.size)]

    def scored(words: np.ndarray) -> np.ndarray:
        (found,) = session.run(None, feeds(apart, words.ravel(), targets.ravel()))
        return np.asarray(found).reshape(words.shape)

    table = scored(rows)
    np.testing.assert_allclose(np.exp(table.astype(np.float64)).sum(axis=0), 1.0, atol=1e-5)
    changed = rows.copy()
    changed[:, 2:] = 8
    other = scored(changed)
    np.testing.assert_allclose(other[:, :2], table[:, :2], atol=1e-5)
    assert np.abs(other[:, 2:] - table[:, 2:]).max() > 0.01


def test_matrices_lie_as_bytes_and_are_near() -> None:
    torch.manual_seed(1)
    parameters = {name: value.numpy() for name, value in LanguageModel(WIDE).state_dict().items()}
    graph = language_model_graph(parameters, WIDE, "")
    held = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(graph).graph.initializer}
    for name in ("embedding", "blocks.1.inner.weight"):
        rows, scale = held[f"{name}.int8"], held[f"{name}.scale"]
        assert rows.dtype == np.int8 and (np.abs(rows).max(axis=1) == 127).all()
        assert (np.abs(rows * scale - parameters[name]) <= 0.501 * scale).all()


def test_parameters_are_checked_by_name(model: LanguageModel) -> None:
    parameters = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in parameters.items()} == model.shape.parameter_shapes()
    missing = {name: value for name, value in parameters.items() if name != "norm.bias"}
    with pytest.raises(BundleError, match=r"norm\.bias: found None"):
        language_model_graph(missing, model.shape, "")
    with pytest.raises(BundleError, match="extra"):
        language_model_graph({**parameters, "extra": np.zeros(1)}, model.shape, "")
    parameters["bias"][3] = np.nan
    with pytest.raises(BundleError, match="bias: found values that are not finite"):
        language_model_graph(parameters, model.shape, "")
