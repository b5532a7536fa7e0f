"""The training session's arguments: every wrong one is refused by name, and a run leaves its inputs alone."""

import re
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import PRESETS, Bundle
from device_sdk.bundle.architecture import factor_names, trainable
from device_sdk.errors import BundleError, LearningError
from device_sdk.runtimes.training import TrainingSession


@pytest.fixture(scope="module")
def session(tiny_bundle: Bundle) -> TrainingSession:
    return TrainingSession(tiny_bundle)


def arguments(bundle: Bundle, **changes: Any) -> dict[str, Any]:
    return {
        "parameters": bundle.weights,
        "features": np.random.default_rng(0).normal(-6, 3, (30, 64)).astype(np.float32),
        "hypotheses": [[3, 4, 5], [], [3]],
        "weights": [1.0, 0.0, -0.5],
    } | changes


def test_shapes_and_names(session: TrainingSession, tiny_bundle: Bundle) -> None:
    found = session.run(**arguments(tiny_bundle, costs=[0, 1, 2], cost_scale=2.0))
    assert found.negative_log_likelihoods.shape == (3,) and (found.negative_log_likelihoods > 0).all()
    assert 0.0 <= found.expected_cost <= 2.0
    shapes = tiny_bundle.architecture.parameter_shapes()
    assert {name: value.shape for name, value in found.gradients.items()} == shapes
    assert session.trainable == tuple(shapes) and all(value.dtype == np.float32 for value in found.gradients.values())


def test_a_run_repeats_exactly_and_changes_no_input(session: TrainingSession, tiny_bundle: Bundle) -> None:
    given = arguments(tiny_bundle)
    copy = given["features"].copy()
    first, second = session.run(**given), session.run(**given)
    np.testing.assert_array_equal(given["features"], copy)
    for name, value in first.gradients.items():
        np.testing.assert_array_equal(value, second.gradients[name])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no hypotheses": ({"hypotheses": [], "weights": []}, "hypotheses: found none"),
    "blank as a token": ({"hypotheses": [[1, 0]], "weights": [1.0]}, r"hypotheses: entry 0 .* outside 1\.\.63"),
    "token too large": ({"hypotheses": [[1], [64]], "weights": [1.0, 1.0]}, "hypotheses: entry 1"),
    "too few frames": ({"features": np.zeros((2, 64), np.float32)}, r"features: found shape \[2, 64\]"),
    "wrong bins": ({"features": np.zeros((9, 80), np.float32)}, r"expected \[F, 64\]"),
    "features of one axis": ({"features": np.zeros(64, np.float32)}, r"features: found shape \[64\]"),
    "float64 features": ({"features": np.zeros((9, 64))}, "features: found float64"),
    "NaN features": ({"features": np.full((9, 64), np.nan, np.float32)}, "features: .*not finite"),
    "weights of another length": ({"weights": [1.0]}, r"weights: found shape \[1\], expected \[3\]"),
    "infinite weight": ({"weights": [1.0, np.inf, 0.0]}, "weights: .* finite"),
    "costs of another length": ({"costs": [1.0]}, r"costs: found shape \[1\]"),
    "NaN cost scale": ({"cost_scale": float("nan")}, "cost_scale: found nan"),
    "another shape": ({"bias": np.zeros(3, np.float32)}, r"parameters: 'joiner\.output\.bias': found float32"),
    "another type": ({"bias": np.zeros(64)}, r"parameters: 'joiner\.output\.bias': found float64"),
    "no parameters": ({"parameters": {}}, r"parameters: 'encoder\.0\.W': found nothing, expected float32 \[128, 192\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, session: TrainingSession, tiny_bundle: Bundle) -> None:
    changes, message = WRONG[name]
    if "bias" in changes:
        changes = {"parameters": {**tiny_bundle.weights, "joiner.output.bias": changes["bias"]}}
    with pytest.raises(LearningError, match=message):
        session.run(**arguments(tiny_bundle, **changes))


def test_factors_of_another_shape_are_refused(tiny_bundle: Bundle) -> None:
    """Their rank is free, but must be one rank."""
    session, parameters = TrainingSession(tiny_bundle, subset="adapters"), dict(tiny_bundle.weights)
    for name in trainable(tiny_bundle.architecture, "adapters"):
        (up, down), (out, width) = factor_names(name), parameters[name].shape
        parameters[up], parameters[down] = np.zeros((out, 3), np.float32), np.zeros((3, width), np.float32)
    assert session.run(**arguments(tiny_bundle, parameters=parameters)).gradients["encoder.0.R.up"].shape == (128, 3)
    for name, shape in (("encoder.0.R.down", (2, 32)), ("joiner.output.weight.up", (64,))):
        wrong = parameters | {name: np.zeros(shape, np.float32)}
        with pytest.raises(LearningError, match=rf"parameters: '{name}': found float32 {re.escape(str([*shape]))}"):
            session.run(**arguments(tiny_bundle, parameters=wrong))
    with pytest.raises(LearningError, match=r"'encoder\.0\.W\.up': found nothing, expected float32 \[128, 1\]"):
        session.run(**arguments(tiny_bundle))


def test_a_graph_of_another_subset_is_refused(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_sdk.runtimes.training.training_file", lambda subset: "training.acoustic.onnx")
    with pytest.raises(BundleError, match=r"expected losses and gradients for \['encoder\.0\.W'"):
        TrainingSession(tiny_bundle, subset="whole")


def test_what_a_session_is_made_from(tiny_bundle: Bundle) -> None:
    graph = tiny_bundle.file("training.onnx").read_bytes()
    with pytest.raises(ValueError, match="needs a bundle, or a graph with its architecture"):
        TrainingSession(graph=graph)
    with pytest.raises(BundleError, match=r"training graph: metadata idiolect\.architecture"):
        TrainingSession(graph=graph, architecture=PRESETS["small"])
