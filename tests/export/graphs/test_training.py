"""The training graph against float64 autograd, finite differences and its own promises."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.runtimes.onnxruntime import open_session
from device_sdk.runtimes.protocol import utterance_feeds
from device_sdk.runtimes.training import TrainingSession
from export.graphs import build_graphs, training
from export.graphs.builder import GraphBuilder, Value
from export.graphs.lstm import BLOCK, LARGE, recurrent_product
from tests.export.graphs import oracle
from tests.tiny import tiny_weights

pytest.importorskip("torch")

Float = NDArray[np.float32]
TINY = PRESETS["tiny"]


def case(seed, frames, hypotheses, architecture=TINY, *, sharpness=1.0, scale=1.0, cost_scale=0.5) -> tuple:
    """What a session is made for, what it runs on. sharpness: above 1, alignments keep to a path, as a trained model's
    do, and most cells carry nothing."""
    rng, count, parameters = np.random.default_rng(seed), len(hypotheses), tiny_weights(architecture, seed)
    for name in ("joiner.encoder.weight", "joiner.predictor.weight", "joiner.output.weight"):
        parameters[name] = parameters[name] * np.float32(sharpness)
    features = rng.normal(-6.0, 3.0, (frames, architecture.mel_bins)).astype(np.float32)
    weights, costs = (scale * rng.normal(size=count).astype(np.float32)).tolist(), rng.integers(0, 5, count).tolist()
    given = {"parameters": parameters, "features": features, "hypotheses": hypotheses, "weights": weights}
    return architecture, given | {"costs": costs, "cost_scale": scale * cost_scale}


def flat(gradients: dict[str, NDArray[np.floating]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in gradients.values()])


DEEP = Architecture(3, 13, 2, 7, 11, 5, 9, mel_bins=4, subsampling_factor=2)
SHARED = [[5, 9, 4], [5, 9], [5, 9, 4], [5, 8, 4], [], [5]]
"""Prefixes that several hypotheses share are joined once; each still gets its own likelihood and weight."""
SHARP = [[5, 9, 4, 2, 2, 7], [5, 9, 4, 2], [5, 8, 4, 2, 2, 7], [3, 1], []]
CASES: dict[str, Callable[[], tuple[Architecture, dict[str, Any]]]] = {
    "one layer of each, no frame left over": lambda: case(1, 30, [[3, 4], [], [8]]),
    "three layers and two, frames left over": lambda: case(2, 35, [[1, 5, 5], [2]], DEEP),
    "shared prefixes": lambda: case(3, 33, SHARED),
    "the same twice": lambda: case(3, 33, [[7], [7]]),
    "repeated tokens": lambda: case(3, 33, [[1, 1, 1], [1, 1], [1]]),
    # What is left out is measured by the cell that carries most, however large the loss is.
    **{f"sharp, times {scale}": partial(case, 5, 150, SHARP, sharpness=2.0, scale=scale) for scale in (1.0, 1e-6, 1e6)},
    # Recurrent matrices in blocks, for one row (encoder) and for several (predictor).
    "large layers": lambda: case(5, 21, [[3, 7], [9], [3]], replace(TINY, encoder_size=512, predictor_size=512)),
    # The lattice in float64 keeps what float32 sums would lose.
    "600 frames": lambda: case(8, 600, [[int(token) for token in np.random.default_rng(8).integers(1, 64, 12)]]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_agrees_with_float64(name: str) -> None:
    architecture, given = CASES[name]()
    found = TrainingSession(graph=training(architecture), architecture=architecture).run(**given)
    likelihoods, expected, gradients = oracle.loss_and_gradients(architecture, **given)
    np.testing.assert_allclose(found.negative_log_likelihoods, likelihoods, rtol=2e-6, atol=3e-6)
    assert found.expected_cost == pytest.approx(expected, rel=1e-4, abs=1e-6)
    ours, theirs = flat(dict(found.gradients)), flat(gradients)
    assert found.gradients.keys() == gradients.keys()
    assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs), "all parameters together"


def test_nothing_to_learn_is_a_gradient_of_zeros_and_what_is_no_number_stays_none() -> None:
    (_, sharp), session = case(5, 150, SHARP, sharpness=2.0), TrainingSession(graph=training(TINY), architecture=TINY)
    gradients = session.run(**sharp | {"weights": [0.0] * 5, "cost_scale": 0.0}).gradients
    assert not any(value.any() for value in gradients.values())
    broken = sharp["parameters"] | {"joiner.output.bias": np.full(TINY.pieces, np.nan, np.float32)}
    assert np.isnan(session.run(**sharp | {"parameters": broken}).gradients["joiner.output.weight"]).any()


@pytest.mark.parametrize("seed", range(6))
def test_expected_cost_by_finite_differences_of_itself(seed: int) -> None:
    """Eq. 1 of Rao et al. 2023: the slope of E[M] along a random direction, from values of E[M] alone; signs show."""
    _, nbest = case(5, 45, [[5, 9, 4], [5, 9], [5, 8, 4], []])
    halved = {name: value * np.float32(0.5) for name, value in nbest["parameters"].items()}  # spreads the posterior
    given = nbest | {"parameters": halved, "weights": [0.0] * 4, "costs": [0.0, 1.0, 2.0, 3.0], "cost_scale": 1.0}
    gradients = TrainingSession(graph=training(TINY), architecture=TINY).run(**given).gradients
    rng = np.random.default_rng(seed)
    direction = {name: rng.normal(size=value.shape) for name, value in gradients.items()}
    length = np.linalg.norm(flat(direction))
    slope = sum(float((gradients[name] * value).sum()) for name, value in direction.items()) / length

    def expected(step: float) -> float:
        moved = {name: halved[name] + step / length * value for name, value in direction.items()}
        return oracle.loss_and_gradients(TINY, **given | {"parameters": halved | moved})[1]

    step = 1e-4
    assert slope == pytest.approx((expected(step) - expected(-step)) / (2 * step), rel=1e-3, abs=1e-7)


def test_the_same_graph_has_the_same_bytes() -> None:
    assert build_graphs(TINY) == build_graphs(TINY)


SHAPES = {
    "small": (12, 48),
    "large and wide": (512, 2048),
    "large and tall": (2048, 512),
    "large, no whole number of blocks": (1100, 1000),
}


def looped(shape: tuple[int, int], transposed: bool) -> bytes:
    """A graph that takes rows [steps, B, K] and what to add [steps, B, N] to the products of every step."""
    inner, outer = shape
    g = GraphBuilder(PRESETS["tiny"])
    rows, add = g.input("rows", ["S", "B", inner]), g.input("add", ["S", "B", outer])
    matrix = g.input("matrix", shape[::-1] if transposed else shape)
    product = recurrent_product(g, matrix, shape, transposed=transposed)

    def body(q: GraphBuilder, _: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        return [], [product(q, now[0], now[1])]

    g.output("products", g.scan([], [rows, add], body)[0], ["S", "B", outer])
    return g.finish("looped")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("batch", [1, 3])
def test_any_layout_gives_the_product(shape: tuple[int, int], transposed: bool, batch: int) -> None:
    rng = np.random.default_rng(sum(shape) + batch)
    matrix = rng.standard_normal(shape, np.float32)
    rows, add = (rng.standard_normal((2, batch, width), np.float32) for width in shape)
    graph = looped(shape, transposed)
    given = np.ascontiguousarray(matrix.T) if transposed else matrix
    (found,) = open_session(graph, "looped").run(None, {"rows": rows, "add": add, "matrix": given})
    expected = rows.astype(np.float64) @ matrix + add
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    body = next(node for node in onnx.load_from_string(graph).graph.node if node.op_type == "Scan").attribute
    products = {node.op_type for attribute in body for node in attribute.g.node} & {"Gemm", "MatMul"}
    assert products == ({"MatMul"} if shape[0] * shape[1] >= LARGE and shape[1] % BLOCK == 0 else {"Gemm"})


def test_a_pull_is_a_linear_term_of_the_encoders_output() -> None:
    architecture, given = case(4, 35, [[5, 8, 4], [5, 8], []], DEEP)
    session = TrainingSession(graph=training(DEEP), architecture=DEEP)
    parameters, *others = given.values()
    feeds = utterance_feeds(architecture, *others)
    feeds["pull"] = np.random.default_rng(2).normal(size=feeds["pull"].shape).astype(np.float32)
    found = session._gradients(parameters, feeds).gradients
    expected = oracle.loss_and_gradients(architecture, **given, pull=feeds["pull"])[2]
    assert np.linalg.norm(flat(dict(found)) - flat(expected)) <= 1e-5 * np.linalg.norm(flat(expected))
    plain = session.run(**given).gradients
    assert any((found[name] != plain[name]).any() for name in found if name.startswith("encoder."))
    assert all((found[name] == plain[name]).all() for name in found if name.startswith(("predictor.", "joiner.out")))
